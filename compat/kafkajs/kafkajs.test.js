// kafkajs (its own protocol code, old versions of many APIs) against one broker.
// It cannot read assigned partitions without a group, so records are read back by the wire suite's Python. It has no static
// members and no cooperative assignor.

const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const { readFileSync } = require("node:fs");
const path = require("node:path");
const { describe, it } = require("node:test");
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const bootstrap = process.env.BOOTSTRAP;
// run.py says by SLOWNESS how many times as long as a quiet machine this one takes.
const slowness = Number(process.env.SLOWNESS ?? 1);
const short = (name, run) => it(name, { timeout: 60_000 * slowness }, run);
// Not of the gate.
const long = (name, run) => process.env.SHORT || short(name, run);

// Nobody, unless run.py --secured has made a user.
const { SASL_USERNAME: username, SASL_PASSWORD: password, SSL_CA: ca } = process.env;
const login = username && { ssl: { ca: [readFileSync(ca)] }, sasl: { mechanism: "scram-sha-512", username, password } };
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING, retry: { retries: 3 }, ...login });

// Counted from there on: two names of one microsecond would be one.
let number = process.hrtime.bigint() / 1000n;
const unique = (name) => `${name}-${number++}`;

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
import calls
with calls.connect_to_leader(${JSON.stringify(topic)}) as connection:
    for value in calls.fetched_values(connection, ${JSON.stringify(topic)}):
        print(value.decode())
`;
  return execFileSync("python3", ["-c", python], { encoding: "utf8" }).trim().split("\n");
}

const PARTITIONS = 4;

async function until(what, is) {
  const deadline = Date.now() + 50_000 * slowness;
  while (!(await is())) {
    assert.ok(Date.now() < deadline, `never came to be: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A running consumer that knows what it has and what it has read. */
async function join(groupId, topic, { run = {}, ...options } = {}) {
  const retry = { initialRetryTime: 50, retries: 5 };
  const consumer = kafka.consumer({ groupId, heartbeatInterval: 100, maxWaitTimeInMs: 200, retry, ...options });
  const member = { consumer, assigned: [], values: [], headers: [], crash: null, leave: () => consumer.disconnect() };
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => (member.assigned = payload.memberAssignment[topic] ?? []));
  consumer.on(consumer.events.CRASH, ({ payload }) => (member.crash = payload.error));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const eachMessage = async ({ message }) => {
    member.values.push(`${message.value}`);
    member.headers.push(message.headers);
  };
  await consumer.run({ eachMessage, ...run });
  return member;
}

/** Waits until the members have all partitions between them, as many each as the counts say. */
function shared(members, counts) {
  const all = JSON.stringify([...Array(PARTITIONS).keys()]);
  return until(`partitions shared as ${counts}`, () => {
    const has = members.map(({ assigned }) => assigned);
    return JSON.stringify(has.flat().sort()) === all && has.every(({ length }, index) => length === counts[index]);
  });
}

/** Sends `count` numbers to the partitions in turn. */
async function spread(topic, count) {
  const producer = kafka.producer();
  await producer.connect();
  const messages = Array.from({ length: count }, (_, number) => ({ value: `${number}`, partition: number % PARTITIONS, headers: { h: "x" } }));
  await producer.send({ topic, messages });
  await producer.disconnect();
}

async function consumed(member, count) {
  await until(`${count} records`, () => member.values.length >= count);
  assert.equal(member.values.length, count);
}

async function committed(groupId, topic) {
  const [{ partitions }] = await withAdmin((admin) => admin.fetchOffsets({ groupId, topics: [topic] }));
  return partitions.sort((a, b) => a.partition - b.partition).map(({ offset }) => offset);
}

describe("the log", () => {
  short("values_arrive_in_order_with_every_acks_setting", async () => {
    for (const acks of [0, 1, -1]) {
      const topic = await newTopic();
      const values = Array.from({ length: 200 }, (_, number) => `${number}`);
      await produce(topic, values, { acks });
      while ((await end(topic)) < 200); // acks=0 may still be on its way
      assert.deepEqual(readBack(topic), values);
    }
  });

  short("gzip_and_an_idempotent_producer_deliver", async () => {
    const topic = await newTopic();
    const [answer] = await produce(topic, ["a", "b"], { compression: CompressionTypes.GZIP });
    assert.deepEqual([answer.errorCode, answer.baseOffset], [0, "0"]);
    const [again] = await produce(topic, ["c"], { idempotent: true, acks: -1 });
    assert.deepEqual([again.errorCode, again.baseOffset], [0, "2"]);
    assert.equal(await end(topic), 3);
  });

  short("offsets_are_found_by_timestamp", async () => {
    const topic = await newTopic();
    await produce(topic, ["a", "b"]);
    const before = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, 1000));
    const after = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, 1001));
    assert.deepEqual([before[0].offset, after[0].offset], ["0", "2"]);
  });

  short("topics_are_described_and_deleted_and_records_too", async () => {
    const topic = await newTopic(3);
    await produce(topic, ["a", "b"]);
    await withAdmin(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
      assert.equal(topics[0].partitions.length, 3);
      assert.equal((await admin.describeCluster()).brokers.length, bootstrap.split(",").length);
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "1" }] });
      const [{ low }] = (await admin.fetchTopicOffsets(topic)).filter(({ partition }) => partition === 0);
      assert.equal(low, "1");
      await admin.deleteTopics({ topics: [topic] });
      while ((await admin.listTopics()).includes(topic));
    });
  });

  short("refusals_arrive_as_their_errors", async () => {
    const topic = await newTopic(1, [{ name: "max.message.bytes", value: "1000" }]);
    await assert.rejects(produce(topic, ["x".repeat(5000)]), { type: "MESSAGE_TOO_LARGE" });
    const create = (name, entry = {}) => withAdmin((admin) => admin.createTopics({ topics: [{ topic: name, ...entry }] }));
    await assert.rejects(create("bad name"), (error) => error.errors[0].type === "INVALID_TOPIC_EXCEPTION");
    await assert.rejects(create(unique("bad"), { replicationFactor: 9 }), (error) => error.errors[0].type === "INVALID_REPLICATION_FACTOR");
    assert.equal(await create(topic), false, "it exists");
  });
});

/** The values that readers of committed records have, up to the end that is there now. */
async function seenCommitted(topic) {
  const last = "the end";
  await produce(topic, [last]);
  const member = await join(unique("kafkajs-reader"), topic, { readUncommitted: false });
  await until("the last record", () => member.values.includes(last));
  await member.leave();
  return member.values.filter((value) => value !== last);
}

async function transactional(transactionalId, use) {
  const producer = kafka.producer({ transactionalId, maxInFlightRequests: 1, idempotent: true, retry: { initialRetryTime: 20, retries: 10 } });
  await producer.connect();
  try {
    return await use(producer);
  } finally {
    await producer.disconnect();
  }
}

// At the same time, for they mostly wait.
describe("groups and transactions", { concurrency: true }, () => {
  short("members_share_partitions_as_they_join_and_leave", async () => {
    const topic = await newTopic(PARTITIONS);
    const group = unique("kafkajs-group");
    const first = await join(group, topic);
    await shared([first], [4]);
    const second = await join(group, topic);
    await shared([first, second], [2, 2]);
    await spread(topic, 40);
    await consumed(first, 20);
    await consumed(second, 20);
    assert.equal(`${first.headers[0].h}`, "x");
    await first.leave();
    await shared([second], [4]);
    await spread(topic, 40);
    await consumed(second, 60);
    await second.leave();
    assert.deepEqual([first.crash, second.crash], [null, null]);
  });

  short("committed_offsets_are_found_by_the_next_member", async () => {
    const topic = await newTopic(PARTITIONS);
    const group = unique("kafkajs-group");
    await spread(topic, 40);
    const first = await join(group, topic, { run: { autoCommitThreshold: 1 } });
    await consumed(first, 40);
    await until("every commit", async () => `${await committed(group, topic)}` === "10,10,10,10");
    await first.leave();
    await spread(topic, 8);
    const second = await join(group, topic, { run: { autoCommit: false } });
    await consumed(second, 8);
    assert.deepEqual(await committed(group, topic), ["10", "10", "10", "10"]);
    await second.consumer.commitOffsets([{ topic, partition: 1, offset: "12", metadata: "why" }]);
    await second.leave();
    const [{ partitions }] = await withAdmin((admin) => admin.fetchOffsets({ groupId: group }));
    const [one] = partitions.filter(({ partition }) => partition === 1);
    assert.deepEqual([partitions.length, one.offset, one.metadata], [4, "12", "why"]);
  });

  long("groups_are_listed_described_and_deleted", async () => {
    const topic = await newTopic(PARTITIONS);
    const group = unique("kafkajs-group");
    const member = await join(group, topic);
    await shared([member], [4]);
    await withAdmin(async (admin) => {
      const listed = async () => (await admin.listGroups()).groups.find(({ groupId }) => groupId === group);
      assert.equal((await listed()).protocolType, "consumer");
      const described = async () => (await admin.describeGroups([group])).groups[0];
      const { state, protocol, protocolType, members } = await described();
      assert.deepEqual([state, protocol, protocolType, members.length], ["Stable", "RoundRobinAssigner", "consumer", 1]);
      assert.deepEqual([members[0].clientId, members[0].clientHost], ["kafkajs", "/127.0.0.1"]);
      const refusal = ({ groups: [{ error }] }) => error.type === "NON_EMPTY_GROUP";
      await assert.rejects(admin.deleteGroups([group]), refusal);
      await member.leave();
      assert.equal((await described()).state, "Empty");
      await admin.deleteGroups([group]);
      assert.equal(await listed(), undefined);
      await assert.rejects(admin.deleteGroups([group]), ({ groups: [{ error }] }) => error.type === "GROUP_ID_NOT_FOUND");
    });
  });

  // This client sets offsets by joining the group for five seconds, so two do it at the same time, on connections of their own.
  long("offsets_are_set_and_reset_by_an_admin", async () => {
    const topic = await newTopic(PARTITIONS);
    const [groupId, another] = [unique("kafkajs-group"), unique("kafkajs-group")];
    await spread(topic, 40);
    const partitions = [{ partition: 0, offset: "3" }, { partition: 1, offset: "7" }];
    await Promise.all([
      withAdmin((admin) => admin.setOffsets({ groupId, topic, partitions })),
      withAdmin((admin) => admin.resetOffsets({ groupId: another, topic, earliest: false })),
    ]);
    assert.deepEqual(await committed(groupId, topic), ["3", "7", "-1", "-1"]);
    const resolved = { groupId: another, topics: [topic], resolveOffsets: true };
    const [latest] = await withAdmin((admin) => admin.fetchOffsets(resolved));
    assert.deepEqual(latest.partitions.map(({ offset }) => offset), ["10", "10", "10", "10"]);
    const member = await join(groupId, topic);
    await consumed(member, 30);
    await withAdmin((admin) => assert.rejects(admin.setOffsets({ groupId, topic, partitions }), /no running instances/));
    await member.leave();
  });

  long("a_session_too_short_is_refused", async () => {
    const member = await join(unique("kafkajs-group"), await newTopic(PARTITIONS), { sessionTimeout: 1000, rebalanceTimeout: 1000 });
    await until("the refusal", () => member.crash !== null);
    assert.equal(member.crash.type, "INVALID_SESSION_TIMEOUT");
    await member.leave();
  });

  short("what_is_committed_is_seen_and_what_is_aborted_is_not", async () => {
    const topic = await newTopic();
    await transactional(unique("kafkajs"), async (producer) => {
      for (const [number, commits] of [true, false, true].entries()) {
        const transaction = await producer.transaction();
        await transaction.send({ topic, messages: [{ value: `${number}.0` }, { value: `${number}.1` }] });
        await (commits ? transaction.commit() : transaction.abort());
      }
    });
    assert.deepEqual(await seenCommitted(topic), ["0.0", "0.1", "2.0", "2.1"]);
  });

  long("a_second_producer_of_the_same_id_fences_the_first", async () => {
    const [topic, id] = [await newTopic(), unique("kafkajs")];
    await transactional(id, async (first) => {
      const open = await first.transaction();
      await open.send({ topic, messages: [{ value: "of the first" }] });
      await transactional(id, async (second) => {
        const transaction = await second.transaction();
        await transaction.send({ topic, messages: [{ value: "of the second" }] });
        await transaction.commit();
      });
      const isFenced = ({ type }) => ["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"].includes(type);
      await assert.rejects(open.commit(), isFenced);
    });
    assert.deepEqual(await seenCommitted(topic), ["of the second"]);
  });

  short("offsets_are_committed_with_the_records", async () => {
    const [source, target] = [await newTopic(PARTITIONS), await newTopic()];
    const consumerGroupId = unique("kafkajs-loop");
    const expected = async (offset) => {
      await until(`${offset} is committed`, async () => `${await committed(consumerGroupId, source)}` === `${offset},-1,-1,-1`);
    };
    await transactional(unique("kafkajs"), async (producer) => {
      for (const [offset, commits] of [["3", true], ["5", false], ["7", true]]) {
        const transaction = await producer.transaction();
        await transaction.send({ topic: target, messages: [{ value: offset }] });
        await transaction.sendOffsets({ consumerGroupId, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] });
        await (commits ? transaction.commit() : transaction.abort());
        await expected(commits ? offset : "3");
      }
    });
    assert.deepEqual(await seenCommitted(target), ["3", "7"]);
  });
});
