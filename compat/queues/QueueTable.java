import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams, which keeps a topic as a table in memory: QueueTable BOOTSTRAP APPLICATION STATE_DIRECTORY TOPIC table|global.
 *
 * <p>The topic is the table's changelog, too. It prints `restored PARTITION COUNT` for what it reads before it works, `has KEY VALUE`
 * for all that is in the table then, and `ready`; then `got KEY VALUE` for each record that a table of its own gets. It ends at
 * SIGTERM.
 */
public class QueueTable {
    static final String STORE = "table";

    public static void main(String[] args) throws InterruptedException {
        String topic = args[3];
        boolean isGlobal = args[4].equals("global");
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Each record is to be seen, and not the last of some.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // Without this a table has a changelog of its own.
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        // Whoever comes after it has its share without waiting for the end of a session.
        settings.put(StreamsConfig.consumerPrefix("group.instance.id"), "one");

        StreamsBuilder builder = new StreamsBuilder();
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> store = Materialized.as(Stores.inMemoryKeyValueStore(STORE));
        if (isGlobal) {
            builder.globalTable(topic, store);
        } else {
            builder.table(topic, store).toStream().foreach((key, value) -> System.out.println("got " + key + " " + value));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setGlobalStateRestoreListener(new Restored());
        CountDownLatch running = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        CountDownLatch leaving = new CountDownLatch(1), left = new CountDownLatch(1);
        // A JVM that a signal ends says so by its code. This one has done what it was asked for.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leaving.countDown();
            try {
                left.await();
                Runtime.getRuntime().halt(0);
            } catch (InterruptedException nobodyDoes) {
                Runtime.getRuntime().halt(1);
            }
        }));
        streams.start();
        running.await();
        tell(streams);
        System.out.println("ready");
        leaving.await();
        streams.close();
        left.countDown();
    }

    static void tell(KafkaStreams streams) {
        ReadOnlyKeyValueStore<String, String> table = streams.store(StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
        Map<String, String> all = new TreeMap<>();
        try (var entries = table.all()) {
            entries.forEachRemaining(entry -> all.put(entry.key, entry.value));
        }
        all.forEach((key, value) -> System.out.println("has " + key + " " + value));
    }

    static class Restored implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long from, long to) {}

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long to, long count) {}

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long count) {
            System.out.println("restored " + partition.partition() + " " + count);
        }
    }
}
