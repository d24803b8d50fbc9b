import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies a topic into another one, several keys at a time, until its input ends: ParallelProcessors BOOTSTRAP COMMIT_MODE IN OUT
 * [REFUSED], where the value REFUSED fails whenever it comes. IN is also the group's name, and OUT the transactional id.
 */
public final class ParallelProcessors {
    public static void main(String[] arguments) throws Exception {
        CommitMode mode = CommitMode.valueOf(arguments[1]);
        String bootstrap = arguments[0], in = arguments[2], out = arguments[3];
        String refused = arguments.length > 4 ? arguments[4] : null;
        boolean transactional = mode == CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER;
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", in,
                        "auto.offset.reset", "earliest",
                        "enable.auto.commit", false,
                        // Takes the place of the one before at once, though that one was killed.
                        "group.instance.id", "only",
                        "isolation.level", "read_committed"),
                new StringDeserializer(),
                new StringDeserializer());
        KafkaProducer<String, String> producer = new KafkaProducer<>(
                transactional ? Map.of("bootstrap.servers", bootstrap, "transactional.id", out) : Map.of("bootstrap.servers", bootstrap),
                new StringSerializer(),
                new StringSerializer());
        ParallelStreamProcessor<String, String> processor =
                ParallelStreamProcessor.createEosStreamProcessor(ParallelConsumerOptions.<String, String>builder()
                        .ordering(ProcessingOrder.KEY)
                        .commitMode(mode)
                        .commitInterval(Duration.ofMillis(200))
                        .retryDelayProvider(record -> Duration.ofMillis(200))
                        .maxConcurrency(8)
                        .consumer(consumer)
                        .producer(producer)
                        .build());
        processor.subscribe(List.of(in));
        processor.pollAndProduce(context -> {
            ConsumerRecord<String, String> record = context.getSingleConsumerRecord();
            if (record.value().equals(refused)) {
                throw new IllegalStateException("refused");
            }
            return new ProducerRecord<>(out, record.key(), record.value());
        });
        while (System.in.read() >= 0) {}
        processor.closeDontDrainFirst();
        // Threads of it stay, now and then.
        System.exit(0);
    }
}
