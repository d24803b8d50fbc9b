import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * A Kafka Streams application with exactly-once semantics: StreamsApp BOOTSTRAP APPLICATION STATE_DIRECTORY INSTANCE.
 *
 * <p>Topics begin with the application's name. From `-clicks` (user, number) and `-users` (user, name) and `-views` (number,
 * text) it makes `-counts` (user@window, count so far), `-named` (user, number:name) and `-viewed` (number, user:text). It ends
 * at SIGTERM.
 */
public class StreamsApp {
    static final Duration WINDOW = Duration.ofSeconds(5);
    static final Duration LATE = Duration.ofHours(1);

    public static void main(String[] args) throws InterruptedException {
        String application = args[1];
        Properties settings = new Properties();
        settings.putAll(Suite.reach(args[0]));
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Every record of the input has one of the output, and so nothing that is counted twice or not at all hides.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // All state comes from its topics again after each kill.
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers");
        // Whoever comes back, or replaces who was killed, has its share without waiting for the end of a session.
        settings.put(StreamsConfig.consumerPrefix("group.instance.id"), args[3]);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 3000);

        KafkaStreams streams = new KafkaStreams(topology(application + "-"), settings);
        CountDownLatch ended = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR) {
                ended.countDown();
            }
        });
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace(System.out);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        ended.await();
        Runtime.getRuntime().halt(1);
    }

    static Topology topology(String prefix) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> clicks = builder.stream(prefix + "clicks");
        clicks.groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, LATE))
                .count()
                .toStream((window, count) -> window.key() + "@" + window.window().start())
                .mapValues(String::valueOf)
                .to(prefix + "counts");

        KTable<String, String> users = builder.table(prefix + "users");
        clicks.join(users, (number, name) -> number + ":" + name).to(prefix + "named");

        // By a key of its own each click goes through another topic first.
        KStream<String, String> views = builder.stream(prefix + "views");
        clicks.map((user, number) -> KeyValue.pair(number, user))
                .join(views, (user, text) -> user + ":" + text, JoinWindows.ofTimeDifferenceAndGrace(LATE, LATE))
                .to(prefix + "viewed");
        return builder.build();
    }
}
