import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic into another one exactly once, until it is killed: FlinkJob BOOTSTRAP IN OUT CHECKPOINTS FAILS_AT [CHECKPOINT].
 *
 * <p>It fails once, at the value FAILS_AT, and begins again from its last checkpoint; or at its start from CHECKPOINT, which a
 * job before it left. IN is also its group's name, and OUT the prefix of its transactions.
 */
public final class FlinkJob {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], in = arguments[1], out = arguments[2];
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + arguments[3]);
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(200));
        settings.set(CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        // The failure that is wanted, and none that is not.
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 1);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ZERO);
        if (arguments.length > 5) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, "file://" + arguments[5]);
        }
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(in)
                .setGroupId(in)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(out)
                // Brokers allow 15 minutes; the sink's default is an hour.
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(out)
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        job.fromSource(source, WatermarkStrategy.noWatermarks(), in).map(new FailsOnce(arguments[4])).sinkTo(sink);
        job.execute();
    }

    private static final class FailsOnce implements MapFunction<String, String> {
        private static final long serialVersionUID = 1;
        // Of the JVM: a map that begins again is another object.
        private static final AtomicBoolean FAILED = new AtomicBoolean();
        private final String at;

        FailsOnce(String at) {
            this.at = at;
        }

        @Override
        public String map(String value) {
            if (value.equals(at) && FAILED.compareAndSet(false, true)) {
                throw new IllegalStateException("the failure that is wanted");
            }
            return value;
        }
    }
}
