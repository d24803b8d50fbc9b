import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.function.BiConsumer;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * What one version of kafka-clients does with a broker. It is compiled against the oldest of them, and calls only what all have; each
 * version has classes of its own (see OldClients).
 */
public final class Scenario {
    private static final Duration SOON = Duration.ofMillis(100);
    private static final long PATIENCE_MS = 30_000;
    private static final List<String> CODECS = Arrays.asList("none", "gzip", "snappy", "lz4", "zstd");

    private final String bootstrap;
    private final String name;
    private final TopicPartition first;

    private Scenario(String bootstrap, String name) {
        this.bootstrap = bootstrap;
        this.name = name;
        first = new TopicPartition(name, 0);
    }

    interface Step {
        void run() throws Exception;
    }

    /** Tells of each step how it ended, until one fails. {@code name} is of all that is made. */
    public static void run(String bootstrap, String name, BiConsumer<String, Throwable> ended) {
        Scenario it = new Scenario(bootstrap, name);
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("creates and describes a topic", it::create);
        steps.put("produces with idempotence in every codec", it::produce);
        steps.put("consumes in a group and commits", it::consume);
        steps.put("lists offsets", it::listOffsets);
        steps.put("commits and aborts transactions, and offsets with them", it::transact);
        steps.put("deletes groups and topics", it::delete);
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            try {
                step.getValue().run();
            } catch (Exception | LinkageError | AssertionError failure) {
                ended.accept(step.getKey(), failure);
                return;
            }
            ended.accept(step.getKey(), null);
        }
    }

    private void create() throws Exception {
        try (AdminClient admin = AdminClient.create(properties())) {
            short replicas = (short) bootstrap.split(",").length;
            admin.createTopics(Collections.singleton(new NewTopic(name, 1, replicas))).all().get();
            admin.createPartitions(Collections.singletonMap(name, NewPartitions.increaseTo(2))).all().get();
            equal("nodes", bootstrap.split(",").length, admin.describeCluster().nodes().get().size());
            eventually("the topic is listed", () -> admin.listTopics().names().get().contains(name));
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
            String policy = admin.describeConfigs(Collections.singleton(topic)).all().get().get(topic).get("cleanup.policy").value();
            equal("cleanup.policy", "delete", policy);
        }
    }

    private void produce() throws Exception {
        for (String codec : CODECS) {
            try (KafkaProducer<String, String> producer = producer("compression.type", codec, "enable.idempotence", "true")) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int n = 0; n < 10; n++) {
                    sent.add(producer.send(new ProducerRecord<>(name, 0, "key", codec + n)));
                }
                for (int n = 0; n < sent.size(); n++) {
                    equal("offset", CODECS.indexOf(codec) * 10L + n, sent.get(n).get().offset());
                }
            }
        }
    }

    private void consume() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer("group.id", name)) {
            consumer.subscribe(Collections.singleton(name));
            List<String> values = poll(consumer, 50);
            List<String> expected = new ArrayList<>();
            CODECS.forEach(codec -> {
                for (int n = 0; n < 10; n++) {
                    expected.add(codec + n);
                }
            });
            equal("values", expected, values);
            consumer.commitSync();
            equal("committed", 50L, committed(name).get(first).offset());
        }
    }

    private void listOffsets() {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            Collection<TopicPartition> both = Arrays.asList(first, new TopicPartition(name, 1));
            equal("beginning", 0L, consumer.beginningOffsets(both).get(first));
            equal("end", 50L, consumer.endOffsets(both).get(first));
            equal("from 1970 on", 0L, consumer.offsetsForTimes(Collections.singletonMap(first, 1L)).get(first).offset());
            equal("partitions", 2, consumer.partitionsFor(name).size());
        }
    }

    private void transact() throws Exception {
        String group = name + "-offsets";
        try (KafkaProducer<String, String> producer = producer("transactional.id", name)) {
            producer.initTransactions();
            for (int n = 0; n < 4; n++) {
                boolean commits = n % 2 == 0;
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name, 1, "key", (commits ? "committed" : "aborted") + n)).get();
                sendOffsets(producer, Collections.singletonMap(first, new OffsetAndMetadata(n + 1)), group);
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", "read_committed")) {
            TopicPartition second = new TopicPartition(name, 1);
            consumer.assign(Collections.singleton(second));
            consumer.seekToBeginning(Collections.singleton(second));
            equal("values", Arrays.asList("committed0", "committed2"), poll(consumer, 2));
            equal("four records and four markers", 8L, consumer.endOffsets(Collections.singleton(second)).get(second));
        }
        eventually("offsets of the last transaction that was committed", () -> committed(group).get(first).offset() == 3);
    }

    private void delete() throws Exception {
        try (AdminClient admin = AdminClient.create(properties())) {
            Collection<String> groups = Arrays.asList(name, name + "-offsets");
            equal("members", 0, admin.describeConsumerGroups(groups).all().get().get(name).members().size());
            admin.deleteConsumerGroups(groups).all().get();
            admin.deleteTopics(Collections.singleton(name)).all().get();
            eventually("the topic is listed no more", () -> !admin.listTopics().names().get().contains(name));
        }
    }

    /** The way before 2.5 is gone in 4.0. */
    private static void sendOffsets(KafkaProducer<?, ?> producer, Map<TopicPartition, OffsetAndMetadata> offsets, String group) throws Exception {
        try {
            producer.sendOffsetsToTransaction(offsets, group);
        } catch (NoSuchMethodError e) {
            Class<?> metadata = Class.forName("org.apache.kafka.clients.consumer.ConsumerGroupMetadata", true, producer.getClass().getClassLoader());
            Object groupMetadata = metadata.getConstructor(String.class).newInstance(group);
            producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, metadata).invoke(producer, offsets, groupMetadata);
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> committed(String group) throws Exception {
        try (AdminClient admin = AdminClient.create(properties())) {
            return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        }
    }

    private static List<String> poll(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (values.size() < count && System.currentTimeMillis() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(SOON)) {
                values.add(record.value());
            }
        }
        return values;
    }

    /** The user's, if run.py --secured has made one. */
    private static Properties login() {
        Properties login = new Properties();
        String path = System.getenv("CLIENT_PROPERTIES");
        if (path != null) {
            try (Reader file = Files.newBufferedReader(Paths.get(path))) {
                login.load(file);
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
        return login;
    }

    private Properties properties(String... more) {
        Properties properties = login();
        properties.put("bootstrap.servers", bootstrap);
        for (int n = 0; n < more.length; n += 2) {
            properties.put(more[n], more[n + 1]);
        }
        return properties;
    }

    private KafkaProducer<String, String> producer(String... more) {
        Properties properties = properties(more);
        String serializer = "org.apache.kafka.common.serialization.StringSerializer";
        properties.put("key.serializer", serializer);
        properties.put("value.serializer", serializer);
        // For the old ones it is not the default.
        properties.put("acks", "all");
        return new KafkaProducer<>(properties);
    }

    private KafkaConsumer<String, String> consumer(String... more) {
        Properties properties = properties(more);
        String deserializer = "org.apache.kafka.common.serialization.StringDeserializer";
        properties.put("key.deserializer", deserializer);
        properties.put("value.deserializer", deserializer);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(properties);
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    private static void eventually(String what, Condition condition) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("not in time: " + what);
            }
            Thread.sleep(50);
        }
    }

    private static void equal(String what, Object expected, Object actual) {
        if (!expected.equals(actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
    }
}
