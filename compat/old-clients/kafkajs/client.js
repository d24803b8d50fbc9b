// Some version of KafkaJS against one broker: client.js BOOTSTRAP, with NODE_PATH where that is.

const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");
const { version } = require("kafkajs/package.json");

const brokers = process.argv[2].split(",");
const topic = `old-kafkajs-${process.hrtime.bigint()}`;
// Nobody, unless run.py --secured has made a user.
const { SASL_USERNAME: username, SASL_PASSWORD: password, SSL_CA: ca } = process.env;
const login = username && { ssl: { ca: [readFileSync(ca)] }, sasl: { mechanism: "scram-sha-512", username, password } };
const kafka = new Kafka({ brokers, logLevel: logLevel.NOTHING, ...login });
const admin = kafka.admin();
const values = [..."0123456789"];
const messages = values.map((value) => ({ key: "key", value, partition: 0 }));

async function read(groupId, count) {
  const found = [];
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let enough;
  const done = new Promise((resolve) => (enough = resolve));
  await consumer.run({
    eachMessage: async ({ message }) => {
      found.push(message.value.toString());
      if (found.length >= count) enough();
    },
  });
  const late = setTimeout(enough, 30_000);
  await done;
  clearTimeout(late);
  await consumer.commitOffsets([{ topic, partition: 0, offset: String(count) }]);
  await consumer.disconnect();
  return found;
}

const steps = {
  "creates a topic": async () => {
    await admin.connect();
    await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: brokers.length }] });
  },
  "produces with idempotence": async () => {
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) await producer.send({ topic, messages, compression, acks: -1 });
    await producer.disconnect();
  },
  "consumes in a group and commits": async () => {
    assert.deepEqual(await read(topic, 20), [...values, ...values]);
    const [{ offset }] = await admin.fetchOffsets({ groupId: topic, topic });
    assert.equal(offset, "20");
  },
  "lists offsets": async () => {
    const [{ low, high }] = await admin.fetchTopicOffsets(topic);
    assert.deepEqual([low, high], ["0", "20"]);
  },
  "commits and aborts transactions, and offsets with them": async () => {
    const producer = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 });
    const consumerGroupId = `${topic}-offsets`;
    await producer.connect();
    for (let number = 0; number < 4; number++) {
      const transaction = await producer.transaction();
      await transaction.send({ topic, messages: [{ key: "key", value: `${number}`, partition: 0 }], acks: -1 });
      const partitions = [{ partition: 0, offset: `${number + 1}` }];
      await transaction.sendOffsets({ consumerGroupId, topics: [{ topic, partitions }] });
      await (number % 2 === 0 ? transaction.commit() : transaction.abort());
    }
    await producer.disconnect();
    const [{ offset }] = await admin.fetchOffsets({ groupId: consumerGroupId, topic });
    assert.equal(offset, "3");
    assert.deepEqual(await read(`${topic}-again`, 22), [...values, ...values, "0", "2"]);
  },
  "deletes a topic": async () => {
    await admin.deleteTopics({ topics: [topic] });
    await admin.disconnect();
  },
};

(async () => {
  for (const [what, step] of Object.entries(steps)) {
    try {
      await step();
    } catch (error) {
      console.log(`${error.stack}\nFAIL KafkaJS ${version} ${what}`);
      process.exit(1);
    }
    console.log(`ok   KafkaJS ${version} ${what}`);
  }
  process.exit(0);
})();
