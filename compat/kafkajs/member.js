// A member of ../groups: member.js BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.

const { writeSync } = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, groupId] = process.argv.slice(2);
const retry = { initialRetryTime: 100, maxRetryTime: 1000, retries: 1000 };
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.ERROR, retry });
// A consumer looks for another coordinator only when it has given up and begins anew: it should not try the old one for long.
const consumer = kafka.consumer({
  groupId, sessionTimeout: 3000, heartbeatInterval: 300, rebalanceTimeout: 5000, maxWaitTimeInMs: 500, retry: { ...retry, retries: 3 },
});

async function main() {
  process.on("SIGTERM", async () => {
    await consumer.disconnect();
    process.exit(0);
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommitThreshold: 1,
    eachMessage: async ({ partition, message }) => {
      writeSync(1, `${partition} ${message.offset} ${message.value}\n`);
    },
  });
}

main();
