import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
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
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client against one broker: Suite BOOTSTRAP [PART OF A NAME]...
 * Every public method without arguments is a test; its name says what it shows. Here are those with assigned partitions;
 * Groups has those of consumer groups, Transactions those of transactional producers, AdminCalls one for each call of the admin client.
 */
public class Suite {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final int MIB = 1 << 20;
    /** How many times as long as a quiet machine this one takes; run.py measures it. */
    static final double SLOWNESS = Double.parseDouble(System.getenv().getOrDefault("SLOWNESS", "1"));

    static final int TEST_TIMEOUT_S = (int) (120 * SLOWNESS);

    static String bootstrap;

    static final String strictBootstrap = System.getenv("STRICT_BOOTSTRAP");
    static final boolean isKafka = "kafka".equals(System.getenv("BROKER_KIND"));

    /** A test by its name; a body that returns a text was left out, and the text says why. */
    record Test(String name, Callable<?> body) {}

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        List<String> parts = List.of(args).subList(1, args.length);
        Predicate<Test> wanted = test -> parts.isEmpty() || parts.stream().anyMatch(test.name()::contains);
        // A daemon, so that a test that hangs does not keep the process alive.
        ExecutorService runner = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        int[] counts = new int[3];
        for (Test test : Stream.concat(tests(Suite.class), AdminCalls.tests()).filter(wanted).toList()) {
            counts[run(test, runner)]++;
        }
        // Members of groups and readers of committed records mostly wait; so these run all at once.
        Map<Test, Future<Integer>> running = new LinkedHashMap<>();
        Stream<Test> groups = Stream.concat(tests(Groups.class), tests(ConsumerGroups.class));
        for (Test test : Stream.concat(groups, tests(Transactions.class)).filter(wanted).toList()) {
            running.put(test, runner.submit(() -> run(test, runner)));
        }
        for (Future<Integer> each : running.values()) {
            counts[each.get()]++;
        }
        String skipped = counts[SKIPPED] > 0 ? ", " + counts[SKIPPED] + " skipped" : "";
        System.out.printf("%d passed, %d failed%s%n", counts[PASSED], counts[FAILED], skipped);
        System.exit(counts[FAILED] == 0 && counts[PASSED] > 0 ? 0 : 1);
    }

    static final int PASSED = 0;
    static final int FAILED = 1;
    static final int SKIPPED = 2;

    static int run(Test test, ExecutorService runner) {
        long started = System.nanoTime();
        Future<?> running = runner.submit(test.body());
        String said = "ok  ";
        int outcome = PASSED;
        try {
            if (running.get(TEST_TIMEOUT_S, TimeUnit.SECONDS) instanceof String reason) {
                said = "SKIP (" + reason + ")";
                outcome = SKIPPED;
            }
        } catch (Exception failure) {
            failure.printStackTrace(System.out);
            said = "FAIL";
            outcome = FAILED;
        }
        System.out.printf("%s %s (%.1f s)%n", said, test.name(), (System.nanoTime() - started) / 1e9);
        return outcome;
    }

    static Stream<Test> tests(Class<? extends Suite> type) {
        return Arrays.stream(type.getDeclaredMethods())
                .filter(method -> Modifier.isPublic(method.getModifiers()) && !Modifier.isStatic(method.getModifiers()))
                .sorted(Comparator.comparing(Method::getName))
                .map(method -> new Test(method.getName(), () -> method.invoke(type.getDeclaredConstructor().newInstance())));
    }

    // What the tests are made of.

    /** Counted from there on: two names of one microsecond would be one. */
    private static final AtomicLong number = new AtomicLong(System.nanoTime() / 1000);

    static String unique(String name) {
        return name + "-" + number.getAndIncrement();
    }

    /** How many brokers are under test: what tests make has as many replicas. */
    static int brokers() {
        return brokerIds().size();
    }

    static List<Integer> brokerIds() {
        return IntStream.rangeClosed(1, bootstrap.split(",").length).boxed().toList();
    }

    static String newTopic(int partitions, String... configs) throws Exception {
        String name = unique("java");
        create(name, partitions, brokers(), configs);
        return name;
    }

    static void create(String name, int partitions, int replicas, String... configs) throws Exception {
        try (Admin admin = admin()) {
            NewTopic topic = new NewTopic(name, partitions, (short) replicas).configs(map(configs));
            admin.createTopics(List.of(topic)).all().get();
            // Kafka answers before it serves the topic. An idempotent producer that is too early may wait for ever: its
            // first batch is refused, its second one taken, and the first one is then out of order.
            var ends = IntStream.range(0, partitions).boxed().collect(Collectors.toMap(p -> new TopicPartition(name, p), p -> OffsetSpec.latest()));
            for (long deadline = System.nanoTime() + 20_000_000_000L; ; Thread.sleep(20)) {
                try {
                    admin.listOffsets(ends).all().get();
                    return;
                } catch (ExecutionException tooEarly) {
                    boolean isUnknown = tooEarly.getCause() instanceof UnknownTopicOrPartitionException;
                    if (!isUnknown || System.nanoTime() > deadline) throw tooEarly;
                }
            }
        }
    }

    static Map<String, String> map(String... pairs) {
        Map<String, String> map = new HashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put(pairs[i], pairs[i + 1]);
        }
        return map;
    }

    static Map<String, Object> settings(String... pairs) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        settings.putAll(map(pairs));
        return settings;
    }

    static Admin admin() {
        return Admin.create(settings("default.api.timeout.ms", "20000", "request.timeout.ms", "20000"));
    }

    static KafkaProducer<byte[], byte[]> producer(String... pairs) {
        return new KafkaProducer<>(settings(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String... pairs) {
        Map<String, Object> settings = settings("fetch.max.wait.ms", "200", "max.partition.fetch.bytes", "16777216");
        settings.putAll(map(pairs));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static ProducerRecord<byte[], byte[]> message(String topic, String value) {
        return new ProducerRecord<>(topic, 0, null, bytes(value));
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, UTF_8);
    }

    /** Sends all without waiting for each, and returns the offsets that were acknowledged. */
    static List<Long> produce(List<ProducerRecord<byte[], byte[]>> records, String... pairs) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(pairs)) {
            List<Future<RecordMetadata>> sent = records.stream().map(producer::send).toList();
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get().offset());
            }
            return offsets;
        }
    }

    static List<Long> produce(String topic, int count, String... pairs) throws Exception {
        return produce(IntStream.range(0, count).mapToObj(number -> message(topic, "" + number)).toList(), pairs);
    }

    static List<ConsumerRecord<byte[], byte[]>> consume(String topic, int count, long offset, String... pairs) {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(pairs)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (found.size() < count && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(500)).forEach(found::add);
            }
            equal(found.size(), count, "records read");
            return found;
        }
    }

    static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(record -> text(record.value())).toList();
    }

    static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(Integer::toString).toList();
    }

    static List<Long> offsets(int count) {
        return IntStream.range(0, count).mapToObj(Long::valueOf).toList();
    }

    static void equal(Object actual, Object expected, String what) {
        if (!expected.equals(actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
    }

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void refused(Class<? extends Exception> expected, Callable<?> call) {
        try {
            call.call();
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            equal(cause.getClass(), expected, "the error, " + cause.getMessage());
            return;
        }
        throw new AssertionError(expected.getSimpleName() + " expected, but it was accepted");
    }

    // The tests.

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

    public void nullAndEmptyKeysAndValuesStayApart() throws Exception {
        String topic = newTopic(1);
        String[][] pairs = {{null, "v"}, {"k", null}, {null, null}, {"", ""}, {"k", ""}};
        produce(Arrays.stream(pairs).map(pair -> new ProducerRecord<>(topic, 0, bytes(pair[0]), bytes(pair[1]))).toList());
        List<ConsumerRecord<byte[], byte[]>> got = consume(topic, pairs.length, 0);
        for (int i = 0; i < pairs.length; i++) {
            check(Arrays.equals(got.get(i).key(), bytes(pairs[i][0])) && Arrays.equals(got.get(i).value(), bytes(pairs[i][1])), "pair " + i);
        }
    }

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

    public void everyAcksSettingDelivers() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = newTopic(1);
            List<Long> said = produce(topic, 200, "acks", acks, "enable.idempotence", "false");
            equal(said.get(199), acks.equals("0") ? -1L : 199L, "the offset of the last one with acks=" + acks);
            equal(values(consume(topic, 200, 0)), numbers(200), "acks=" + acks);
        }
    }

    public void theDefaultProducerIsIdempotentAndKeepsOrder() throws Exception {
        String topic = newTopic(1);
        equal(produce(topic, 20_000, "linger.ms", "0", "batch.size", "1000"), offsets(20_000), "offsets");
        equal(values(consume(topic, 20_000, 0)), numbers(20_000), "values");
    }

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

    public void anOversizeRecordIsRefusedAndTheNextOneIsNot() throws Exception {
        String topic = newTopic(1, "max.message.bytes", "2000");
        try (var producer = producer()) {
            equal(producer.send(message(topic, "x".repeat(100))).get().offset(), 0L, "offset");
            refused(RecordTooLargeException.class, () -> producer.send(message(topic, "x".repeat(5000))).get());
            equal(producer.send(message(topic, "x".repeat(101))).get().offset(), 1L, "offset");
        }
    }

    public void aRecordWithoutAKeyIsRefusedByACompactedTopic() throws Exception {
        String topic = newTopic(1, "cleanup.policy", "compact");
        refused(InvalidRecordException.class, () -> produce(topic, 1));
        equal(produce(List.of(new ProducerRecord<>(topic, 0, bytes("k"), null))), List.of(0L), "a tombstone");
    }

    public void aTimestampTooFarAheadIsRefused() throws Exception {
        String topic = newTopic(1);
        long ahead = System.currentTimeMillis() + 48 * 3_600_000L;
        refused(InvalidTimestampException.class, () -> produce(List.of(new ProducerRecord<>(topic, 0, ahead, null, bytes("v")))));
    }

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

    public void producingToAnUnknownTopicCreatesItOnlyWhereTheBrokerAllowsThat() throws Exception {
        equal(produce(List.of(message(unique("java-auto"), "v"))), List.of(0L), "offset");
        refused(TimeoutException.class, () ->
                produce(List.of(message(unique("java-refused"), "v")), "bootstrap.servers", strictBootstrap, "max.block.ms", "1500"));
    }

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

    public void readCommittedReadsWhatWasNotPartOfATransaction() throws Exception {
        String topic = newTopic(1);
        produce(topic, 3);
        equal(values(consume(topic, 3, 0, "isolation.level", "read_committed")), numbers(3), "values");
    }

    public void theClusterDescribesItself() throws Exception {
        try (Admin admin = admin()) {
            var cluster = admin.describeCluster();
            equal(cluster.nodes().get().size(), brokers(), "nodes");
            check(cluster.nodes().get().contains(cluster.controller().get()), "the controller is one of them");
            check(!cluster.clusterId().get().isEmpty(), "a cluster id");
        }
    }
}
