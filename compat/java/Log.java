import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/** Records of assigned partitions, offsets and topics. */
@Isolated
public class Log extends Suite {
    @Test
    @Tag("short")
    public void keysValuesHeadersAndTimestampsComeBackAsTheyWentWithEveryCodec() throws Exception {
        for (String codec : CODECS) {
            String topic = newTopic(1);
            List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
            for (int number = 0; number < 500; number++) {
                var headers = List.of(
                        new RecordHeader("a", bytes("1")), new RecordHeader("a", new byte[0]), new RecordHeader("null", (byte[]) null));
                sent.add(new ProducerRecord<>(
                        topic, 0, 1_600_000_000_000L + number, bytes("key-" + number), bytes(("value-" + number + " ").repeat(50)), List.copyOf(headers)));
            }
            equal(produce(sent, "compression.type", codec, "linger.ms", "5"), offsets(500), codec);
            List<ConsumerRecord<byte[], byte[]>> got = consume(topic, 500, 0);
            for (int number = 0; number < 500; number++) {
                ConsumerRecord<byte[], byte[]> record = got.get(number);
                equal(record.offset(), (long) number, codec);
                equal(text(record.key()), text(sent.get(number).key()), codec);
                equal(text(record.value()), text(sent.get(number).value()), codec);
                equal(record.timestamp(), sent.get(number).timestamp(), codec);
                equal(record.timestampType(), TimestampType.CREATE_TIME, codec);
                equal(List.of(record.headers().toArray()), List.of(sent.get(number).headers().toArray()), codec);
                check(record.leaderEpoch().isPresent(), "a leader epoch");
            }
        }
    }

    @Test
    public void nullAndEmptyKeysAndValuesStayApart() throws Exception {
        String topic = newTopic(1);
        String[][] pairs = {{null, "v"}, {"k", null}, {null, null}, {"", ""}, {"k", ""}};
        produce(Arrays.stream(pairs).map(pair -> new ProducerRecord<>(topic, 0, bytes(pair[0]), bytes(pair[1]))).toList());
        List<ConsumerRecord<byte[], byte[]>> got = consume(topic, pairs.length, 0);
        for (int i = 0; i < pairs.length; i++) {
            check(Arrays.equals(got.get(i).key(), bytes(pairs[i][0])) && Arrays.equals(got.get(i).value(), bytes(pairs[i][1])), "pair " + i);
        }
    }

    @Test
    public void aLogAppendTimeTopicStampsRecordsItself() throws Exception {
        String topic = newTopic(1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        long said;
        try (var producer = producer()) {
            said = producer.send(new ProducerRecord<>(topic, 0, 1000L, null, bytes("v"))).get().timestamp();
        }
        ConsumerRecord<byte[], byte[]> got = consume(topic, 1, 0).get(0);
        equal(got.timestampType(), TimestampType.LOG_APPEND_TIME, "the type");
        equal(got.timestamp(), said, "the time that the producer was told");
        check(before <= said && said <= System.currentTimeMillis(), "the broker's time");
    }

    @Test
    @Tag("short")
    public void everyAcksSettingDelivers() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = newTopic(1);
            List<Long> said = produce(topic, 200, "acks", acks, "enable.idempotence", "false");
            equal(said.get(199), acks.equals("0") ? -1L : 199L, "the offset of the last one with acks=" + acks);
            equal(values(consume(topic, 200, 0)), numbers(200), "acks=" + acks);
        }
    }

    @Test
    @Tag("short")
    public void theDefaultProducerIsIdempotentAndKeepsOrder() throws Exception {
        String topic = newTopic(1);
        equal(produce(topic, 20_000, "linger.ms", "0", "batch.size", "1000"), offsets(20_000), "offsets");
        equal(values(consume(topic, 20_000, 0)), numbers(20_000), "values");
    }

    @Test
    public void aRecordOf11MbGoesThroughWhenTheTopicAllowsIt() throws Exception {
        String topic = newTopic(1, "max.message.bytes", "" + 11 * MIB);
        byte[] value = new byte[11 * MIB - 1000];
        for (int i = 0; i < value.length; i++) {
            value[i] = (byte) (i * 31 >> 3);
        }
        for (String codec : List.of("none", "lz4")) {
            produce(List.of(new ProducerRecord<>(topic, 0, null, value)),
                    "max.request.size", "" + 12 * MIB, "buffer.memory", "" + 40 * MIB, "compression.type", codec);
        }
        for (ConsumerRecord<byte[], byte[]> record : consume(topic, 2, 0)) {
            check(Arrays.equals(record.value(), value), "the content differs");
        }
    }

    @Test
    @Tag("short")
    public void anOversizeRecordIsRefusedAndTheNextOneIsNot() throws Exception {
        String topic = newTopic(1, "max.message.bytes", "2000");
        try (var producer = producer()) {
            equal(producer.send(message(topic, "x".repeat(100))).get().offset(), 0L, "offset");
            refused(RecordTooLargeException.class, () -> producer.send(message(topic, "x".repeat(5000))).get());
            equal(producer.send(message(topic, "x".repeat(101))).get().offset(), 1L, "offset");
        }
    }

    @Test
    public void aRecordWithoutAKeyIsRefusedByACompactedTopic() throws Exception {
        String topic = newTopic(1, "cleanup.policy", "compact");
        refused(InvalidRecordException.class, () -> produce(topic, 1));
        equal(produce(List.of(new ProducerRecord<>(topic, 0, bytes("k"), null))), List.of(0L), "a tombstone");
    }

    @Test
    public void aTimestampTooFarAheadIsRefused() throws Exception {
        String topic = newTopic(1);
        long ahead = System.currentTimeMillis() + 48 * 3_600_000L;
        refused(InvalidTimestampException.class, () -> produce(List.of(new ProducerRecord<>(topic, 0, ahead, null, bytes("v")))));
    }

    @Test
    @Tag("short")
    public void offsetsAreFoundByTimestamp() throws Exception {
        String topic = newTopic(1);
        produce(IntStream.range(0, 100).mapToObj(n -> new ProducerRecord<>(topic, 0, 10_000L + 10 * n, (byte[]) null, bytes("v"))).toList());
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var consumer = consumer()) {
            long[][] cases = {{0, 0}, {10_000, 0}, {10_001, 1}, {10_495, 50}, {10_990, 99}};
            for (long[] pair : cases) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, pair[0])).get(partition);
                equal(found.offset(), pair[1], "timestamp " + pair[0]);
                equal(found.timestamp(), 10_000 + 10 * pair[1], "timestamp " + pair[0]);
            }
            check(consumer.offsetsForTimes(Map.of(partition, 10_991L)).get(partition) == null, "none after the last");
            equal(consumer.beginningOffsets(List.of(partition)).get(partition), 0L, "beginning");
            equal(consumer.endOffsets(List.of(partition)).get(partition), 100L, "end");
        }
        try (Admin admin = admin()) {
            Map<OffsetSpec, Long> specs = Map.of(
                    OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 100L, OffsetSpec.maxTimestamp(), 99L, OffsetSpec.forTimestamp(99_999), -1L,
                    OffsetSpec.earliestLocal(), 0L);
            for (var entry : specs.entrySet()) {
                long offset = admin.listOffsets(Map.of(partition, entry.getKey())).partitionResult(partition).get().offset();
                equal(offset, entry.getValue(), entry.getKey().getClass().getSimpleName());
            }
        }
    }

    @Test
    public void manyPartitionsAreReadByOneConsumer() throws Exception {
        String topic = newTopic(60);
        try (var producer = producer("linger.ms", "5")) {
            for (int number = 0; number < 60 * 50; number++) {
                producer.send(new ProducerRecord<>(topic, number % 60, null, bytes("" + number)));
            }
        }
        List<TopicPartition> partitions = IntStream.range(0, 60).mapToObj(p -> new TopicPartition(topic, p)).toList();
        Map<Integer, List<Integer>> found = new TreeMap<>();
        try (var consumer = consumer()) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            int count = 0;
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (count < 3000 && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    found.computeIfAbsent(record.partition(), p -> new ArrayList<>()).add(Integer.parseInt(text(record.value())));
                    count++;
                }
            }
        }
        for (int partition = 0; partition < 60; partition++) {
            int p = partition;
            equal(found.get(partition), IntStream.range(0, 50).mapToObj(n -> n * 60 + p).toList(), "partition " + partition);
        }
    }

    @Test
    public void aWaitingConsumerGetsARecordAtOnce() throws Exception {
        String topic = newTopic(1);
        try (var consumer = consumer("fetch.max.wait.ms", "3000"); var producer = producer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seekToBeginning(consumer.assignment());
            check(consumer.poll(Duration.ofMillis(700)).isEmpty(), "nothing there yet");
            for (int round = 0; round < 3; round++) {
                producer.send(message(topic, "now")).get();
                long acknowledged = System.nanoTime();
                equal(consumer.poll(Duration.ofSeconds(5)).count(), 1, "records");
                check(System.nanoTime() - acknowledged < 500_000_000L, "the wait ended late");
            }
        }
    }

    @Test
    @Tag("short")
    public void topicsAreDeletedAndRecreatedWithANewIdAndNoOldData() throws Exception {
        String topic = unique("java-again");
        Set<Uuid> ids = new HashSet<>();
        try (Admin admin = admin()) {
            for (int generation = 0; generation < 3; generation++) {
                create(topic, 2, brokers());
                TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                equal(description.partitions().size(), 2, "partitions");
                ids.add(description.topicId());
                equal(produce(List.of(message(topic, "generation " + generation))), List.of(0L), "offset");
                equal(values(consume(topic, 1, 0)), List.of("generation " + generation), "values");
                admin.deleteTopics(List.of(topic)).all().get();
                while (admin.listTopics().names().get().contains(topic)) {
                    Thread.sleep(50);
                }
            }
        }
        equal(ids.size(), 3, "ids");
    }

    @Test
    public void badTopicsAreRefusedByCode() throws Exception {
        String name = unique("java-bad");
        refused(InvalidTopicException.class, () -> { create("bad name", 1, 1); return null; });
        refused(InvalidPartitionsException.class, () -> { create(name, 0, 1); return null; });
        refused(InvalidReplicationFactorException.class, () -> { create(name, 1, 9); return null; });
        refused(InvalidConfigurationException.class, () -> { create(name, 1, 1, "retention.ms", "soon"); return null; });
        create(name, 1, 1);
        refused(TopicExistsException.class, () -> { create(name, 1, 1); return null; });
        try (Admin admin = admin()) {
            refused(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(unique("nowhere"))).all().get());
        }
    }

    @Test
    public void producingToAnUnknownTopicCreatesItOnlyWhereTheBrokerAllowsThat() throws Exception {
        equal(produce(List.of(message(unique("java-auto"), "v"))), List.of(0L), "offset");
        refused(TimeoutException.class, () ->
                produce(List.of(message(unique("java-refused"), "v")), "bootstrap.servers", strictBootstrap, "max.block.ms", "1500"));
    }

    @Test
    public void aConsumerThatForbidsCreationCreatesNothing() throws Exception {
        String topic = unique("java-not-created");
        try (var consumer = consumer("allow.auto.create.topics", "false"); Admin admin = admin()) {
            check(!consumer.listTopics().containsKey(topic), "not there before");
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seek(new TopicPartition(topic, 0), 0);
            check(consumer.poll(Duration.ofMillis(800)).isEmpty(), "nothing to read");
            check(!admin.listTopics().names().get().contains(topic), "not there after");
        }
    }

    @Test
    @Tag("short")
    public void deletedRecordsAreOutOfRange() throws Exception {
        String topic = newTopic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        produce(topic, 10);
        try (Admin admin = admin()) {
            long low = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6))).lowWatermarks().get(partition).get().lowWatermark();
            equal(low, 6L, "low watermark");
            refused(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                    () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all().get());
        }
        equal(values(consume(topic, 4, 6)), List.of("6", "7", "8", "9"), "values");
        equal(consume(topic, 4, 2, "auto.offset.reset", "earliest").get(0).offset(), 6L, "after a reset");
        refused(OffsetOutOfRangeException.class, () -> consume(topic, 4, 2, "auto.offset.reset", "none"));
        refused(OffsetOutOfRangeException.class, () -> consume(topic, 4, 11, "auto.offset.reset", "none"));
    }

    @Test
    public void readCommittedReadsWhatWasNotPartOfATransaction() throws Exception {
        String topic = newTopic(1);
        produce(topic, 3);
        equal(values(consume(topic, 3, 0, "isolation.level", "read_committed")), numbers(3), "values");
    }

    @Test
    public void theClusterDescribesItself() throws Exception {
        try (Admin admin = admin()) {
            var cluster = admin.describeCluster();
            equal(cluster.nodes().get().size(), brokers(), "nodes");
            check(cluster.nodes().get().contains(cluster.controller().get()), "the controller is one of them");
            check(!cluster.clusterId().get().isEmpty(), "a cluster id");
        }
    }
}
