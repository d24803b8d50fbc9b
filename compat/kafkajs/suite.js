// kafkajs (its own protocol code, old versions of many APIs) against one broker: suite.js BOOTSTRAP [PART OF A NAME]...
// It cannot read assigned partitions without a group, so records are read back by the wire suite's Python.

const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const path = require("node:path");
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [bootstrap, ...wanted] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 3 } });

const unique = (name) => `${name}-${process.hrtime.bigint() / 1000n}`;

async function withAdmin(use) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await use(admin);
  } finally {
    await admin.disconnect();
  }
}

async function newTopic(numPartitions = 1, configEntries = []) {
  const topic = unique("kafkajs");
  await withAdmin((admin) => admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions, configEntries }] }));
  return topic;
}

async function produce(topic, values, { idempotent = false, ...send } = {}) {
  const producer = kafka.producer({ idempotent });
  await producer.connect();
  try {
    const messages = values.map((value) => ({ key: "k", value, partition: 0, headers: { h: "x" }, timestamp: "1000" }));
    return await producer.send({ topic, messages, ...send });
  } finally {
    await producer.disconnect();
  }
}

/** The record count that the broker says partition 0 has. */
async function end(topic) {
  const [{ high, low }] = await withAdmin((admin) => admin.fetchTopicOffsets(topic));
  assert.equal(low, "0");
  return Number(high);
}

function readBack(topic) {
  const python = `
import sys
sys.path.insert(0, ${JSON.stringify(path.join(__dirname, "../wire"))})
sys.argv = ["", ${JSON.stringify(bootstrap)}]
import calls
with calls.connect() as connection:
    for value in calls.fetched_values(connection, ${JSON.stringify(topic)}):
        print(value.decode())
`;
  return execFileSync("python3", ["-c", python], { encoding: "utf8" }).trim().split("\n");
}

const tests = {
  async values_arrive_in_order_with_every_acks_setting() {
    for (const acks of [0, 1, -1]) {
      const topic = await newTopic();
      const values = Array.from({ length: 200 }, (_, number) => `${number}`);
      await produce(topic, values, { acks });
      while ((await end(topic)) < 200); // acks=0 may still be on its way
      assert.deepEqual(readBack(topic), values);
    }
  },

  async gzip_and_an_idempotent_producer_deliver() {
    const topic = await newTopic();
    const [answer] = await produce(topic, ["a", "b"], { compression: CompressionTypes.GZIP });
    assert.deepEqual([answer.errorCode, answer.baseOffset], [0, "0"]);
    const [again] = await produce(topic, ["c"], { idempotent: true, acks: -1 });
    assert.deepEqual([again.errorCode, again.baseOffset], [0, "2"]);
    assert.equal(await end(topic), 3);
  },

  async offsets_are_found_by_timestamp() {
    const topic = await newTopic();
    await produce(topic, ["a", "b"]);
    const before = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, 1000));
    const after = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, 1001));
    assert.deepEqual([before[0].offset, after[0].offset], ["0", "2"]);
  },

  async topics_are_described_and_deleted_and_records_too() {
    const topic = await newTopic(3);
    await produce(topic, ["a", "b"]);
    await withAdmin(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
      assert.equal(topics[0].partitions.length, 3);
      assert.equal((await admin.describeCluster()).brokers.length, 1);
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "1" }] });
      const [{ low }] = (await admin.fetchTopicOffsets(topic)).filter(({ partition }) => partition === 0);
      assert.equal(low, "1");
      await admin.deleteTopics({ topics: [topic] });
      while ((await admin.listTopics()).includes(topic));
    });
  },

  async refusals_arrive_as_their_errors() {
    const topic = await newTopic(1, [{ name: "max.message.bytes", value: "1000" }]);
    await assert.rejects(produce(topic, ["x".repeat(5000)]), { type: "MESSAGE_TOO_LARGE" });
    const create = (name, entry = {}) => withAdmin((admin) => admin.createTopics({ topics: [{ topic: name, ...entry }] }));
    await assert.rejects(create("bad name"), (error) => error.errors[0].type === "INVALID_TOPIC_EXCEPTION");
    await assert.rejects(create(unique("bad"), { replicationFactor: 3 }), (error) => error.errors[0].type === "INVALID_REPLICATION_FACTOR");
    assert.equal(await create(topic), false, "it exists");
  },
};

async function main() {
  let passed = 0;
  let failed = 0;
  for (const [name, run] of Object.entries(tests)) {
    if (wanted.length > 0 && !wanted.some((part) => name.includes(part))) continue;
    const started = Date.now();
    let timer;
    const timeout = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("took longer than 60 s")), 60_000)));
    try {
      await Promise.race([run(), timeout]);
      passed++;
      console.log(`ok   ${name} (${(Date.now() - started) / 1000} s)`);
    } catch (failure) {
      failed++;
      console.log(failure);
      console.log(`FAIL ${name}`);
    } finally {
      clearTimeout(timer);
    }
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed > 0 || passed === 0 ? 1 : 0);
}

main();
