// A client of ../security: login.js BOOTSTRAP CA USER PASSWORD TOPIC VALUE. It writes the value, reads it back and prints it; an error ends it.

const { readFileSync } = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, ca, username, password, topic, value] = process.argv.slice(2);
const kafka = new Kafka({
  brokers: [bootstrap], logLevel: logLevel.NOTHING, ssl: { ca: [readFileSync(ca)] }, sasl: { mechanism: "scram-sha-512", username, password },
});

async function main() {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: [{ value }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const read = await new Promise((resolve) => consumer.run({ eachMessage: async ({ message }) => resolve(message.value) }));
  await consumer.disconnect();
  console.log(`${read}`);
}

main();
