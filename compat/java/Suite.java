import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The broker under test, as the environment names it, and what the tests are made of. */
public class Suite {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final int MIB = 1 << 20;
    /** How many times as long as a quiet machine this one takes; run.py measures it. */
    static final double SLOWNESS = Double.parseDouble(System.getenv().getOrDefault("SLOWNESS", "1"));

    static final String bootstrap = System.getenv("BOOTSTRAP");
    static final String strictBootstrap = System.getenv("STRICT_BOOTSTRAP");
    private static final Properties LOGIN = login();
    /** Whether the client logs in as a user, who has few rights. */
    static final boolean hasUser = !LOGIN.isEmpty();
    static final boolean isKafka = "kafka".equals(System.getenv("BROKER_KIND"));

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

    /** Settings of the address, and of who the client says it is: nobody, unless run.py --secured has made a user. */
    static Map<String, Object> reach(String address) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", address));
        LOGIN.forEach((name, value) -> settings.put((String) name, value));
        return settings;
    }

    private static Properties login() {
        Properties login = new Properties();
        String path = System.getenv("CLIENT_PROPERTIES");
        if (path != null) {
            try (Reader file = Files.newBufferedReader(Path.of(path))) {
                login.load(file);
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
        return login;
    }

    static Map<String, Object> settings(String... pairs) {
        Map<String, Object> settings = reach(bootstrap);
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
}
