import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Reads, writes and commits by transactions until its standard input ends: TransactionalLoop BOOTSTRAP SOURCE TARGET GROUP ID.
 * What it does and prints is what transactions/test_transactions.py says.
 */
public class TransactionalLoop {
    static final int AT_ONCE = 10;
    static final int PAUSE_MS = 5;

    public static void main(String[] args) throws Exception {
        TopicPartition source = new TopicPartition(args[1], 0);
        String target = args[2];
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", args[0], "reconnect.backoff.max.ms", 300));
        Map<String, Object> producing = new HashMap<>(settings);
        producing.putAll(Map.of("transactional.id", args[4], "transaction.timeout.ms", 20_000, "request.timeout.ms", 10_000));
        Map<String, Object> consuming = new HashMap<>(settings);
        consuming.putAll(Map.of("group.id", args[3], "enable.auto.commit", false, "isolation.level", "read_committed", "max.poll.records", AT_ONCE));
        AtomicBoolean stop = new AtomicBoolean();
        Thread untilInputEnds = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException broken) {
                // An input that breaks has ended, too.
            }
            stop.set(true);
        });
        untilInputEnds.setDaemon(true);
        untilInputEnds.start();
        Random random = new Random();
        long process = ProcessHandle.current().pid();
        try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
                var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            consumer.assign(List.of(source));
            goBack(consumer, source);
            for (int count = 0; !stop.get(); ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                String attempt = process + "." + count++;
                long next = 0;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    for (int partition = 0; partition < 2; partition++) {
                        producer.send(new ProducerRecord<>(target, partition, null, record.value() + " " + attempt));
                    }
                    next = record.offset() + 1;
                }
                producer.sendOffsetsToTransaction(Map.of(source, new OffsetAndMetadata(next)), consumer.groupMetadata());
                if (random.nextInt(5) > 0) {
                    producer.commitTransaction();
                    System.out.println("committed " + attempt + " " + next);
                } else {
                    producer.flush();
                    producer.abortTransaction();
                    System.out.println("aborted " + attempt);
                    goBack(consumer, source);
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    static void goBack(KafkaConsumer<String, String> consumer, TopicPartition source) {
        OffsetAndMetadata committed = consumer.committed(Set.of(source)).get(source);
        consumer.seek(source, committed == null ? 0 : committed.offset());
    }
}
