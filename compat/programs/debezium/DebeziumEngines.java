import io.debezium.config.Configuration;
import io.debezium.connector.simple.SimpleSourceConnector;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.relational.Column;
import io.debezium.relational.Table;
import io.debezium.relational.TableId;
import io.debezium.relational.Tables;
import io.debezium.relational.history.HistoryRecordComparator;
import io.debezium.relational.history.SchemaHistory;
import io.debezium.relational.history.SchemaHistoryListener;
import io.debezium.relational.history.TableChanges;
import io.debezium.storage.kafka.history.KafkaSchemaHistory;
import java.sql.Types;
import java.time.Instant;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.connect.storage.KafkaOffsetBackingStore;

/**
 * What Debezium keeps in topics, without a database: DebeziumEngines BOOTSTRAP records OUT OFFSETS REPLICAS BATCHES sends batches of
 * ten records and keeps its offsets in a topic, until its input ends; DebeziumEngines BOOTSTRAP record|recover TOPIC CHANGES writes
 * a history of as many changes of schemas, or reads it up to there and prints the tables.
 */
public final class DebeziumEngines {
    private static final Map<String, String> SOURCE = Map.of("server", "compat");

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[2];
        switch (arguments[1]) {
            case "records" -> send(bootstrap, topic, arguments[3], arguments[4], arguments[5]);
            case "record" -> record(history(bootstrap, topic), Integer.parseInt(arguments[3]));
            case "recover" -> recover(history(bootstrap, topic), Integer.parseInt(arguments[3]));
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    private static void send(String bootstrap, String topic, String offsets, String replicas, String batches) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("name", "engine");
        settings.setProperty("connector.class", SimpleSourceConnector.class.getName());
        settings.setProperty("topic.name", topic);
        settings.setProperty("record.count.per.batch", "10");
        settings.setProperty("batch.count", batches);
        settings.setProperty("converter.schemas.enable", "false");
        settings.setProperty("bootstrap.servers", bootstrap);
        settings.setProperty("offset.storage", KafkaOffsetBackingStore.class.getName());
        settings.setProperty("offset.storage.topic", offsets);
        settings.setProperty("offset.storage.partitions", "3");
        settings.setProperty("offset.storage.replication.factor", replicas);
        settings.setProperty("offset.flush.interval.ms", "100");
        // The source waits for ever when it has no more, and is then interrupted: by default after five minutes.
        settings.setProperty("debezium.embedded.shutdown.pause.before.interrupt.ms", "200");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                    .using(settings)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println(message + ": " + error);
                            Runtime.getRuntime().halt(1);
                        }
                    })
                    .notifying((events, committer) -> {
                        for (ChangeEvent<String, String> event : events) {
                            producer.send(new ProducerRecord<>(event.destination(), event.key(), event.value()));
                        }
                        producer.flush();
                        for (ChangeEvent<String, String> event : events) {
                            committer.markProcessed(event);
                        }
                        committer.markBatchFinished();
                    })
                    .build();
            ExecutorService thread = Executors.newSingleThreadExecutor();
            thread.execute(engine);
            while (System.in.read() >= 0) {}
            engine.close();
            thread.shutdown();
            thread.awaitTermination(60, TimeUnit.SECONDS);
        }
    }

    private static SchemaHistory history(String bootstrap, String topic) {
        Configuration settings = Configuration.create()
                .with(KafkaSchemaHistory.BOOTSTRAP_SERVERS, bootstrap)
                .with(KafkaSchemaHistory.TOPIC, topic)
                .with(SchemaHistory.NAME, topic)
                .build();
        SchemaHistory history = new KafkaSchemaHistory();
        history.configure(settings, HistoryRecordComparator.INSTANCE, SchemaHistoryListener.NOOP, true);
        return history;
    }

    /** Makes a table for each change but every third, which drops the table before it. */
    private static void record(SchemaHistory history, int changes) {
        if (!history.storageExists()) {
            history.initializeStorage();
        }
        history.start();
        for (int number = 1; number <= changes; number++) {
            Table table = table(number % 3 == 0 ? number - 1 : number);
            TableChanges change = number % 3 == 0 ? new TableChanges().drop(table.id()) : new TableChanges().create(table);
            history.record(SOURCE, Map.of("position", number), "shop", null, "change " + number, change, Instant.now());
        }
        history.stop();
        System.out.println(history.exists());
    }

    // What is not deprecated wants a connector's own kind of offsets.
    @SuppressWarnings("deprecation")
    private static void recover(SchemaHistory history, int changes) {
        history.start();
        Tables tables = new Tables();
        history.recover(Map.of(SOURCE, Map.of("position", changes)), tables, null);
        history.stop();
        for (TableId id : tables.tableIds()) {
            System.out.println(id + " " + tables.forTable(id).columnWithName("amount").typeName());
        }
    }

    private static Table table(int number) {
        return Table.editor()
                .tableId(new TableId("shop", null, "orders-" + number))
                .addColumns(
                        Column.editor().name("id").type("INT").jdbcType(Types.INTEGER).optional(false).create(),
                        Column.editor().name("amount").type("DECIMAL").jdbcType(Types.DECIMAL).length(10).create())
                .setPrimaryKeyNames("id")
                .create();
    }
}
