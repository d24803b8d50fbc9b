import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Accepts records as a member of a share group until its standard input ends: ShareTaker BOOTSTRAP TOPIC GROUP. It prints
 * `taken DELIVERIES MILLISECONDS VALUE` of each record, with the time at which it came, once its acceptance is durable.
 */
public class ShareTaker {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", args[0], "group.id", args[2],
                "share.acknowledgement.mode", "explicit", "share.acquire.mode", "record_limit", "max.poll.records", 4,
                "fetch.max.wait.ms", 200));
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
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (!stop.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                long now = System.currentTimeMillis();
                records.forEach(record -> consumer.acknowledge(record));
                consumer.commitSync(Duration.ofSeconds(30)).forEach((partition, problem) -> {
                    if (problem.isPresent()) {
                        throw problem.get();
                    }
                });
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println("taken " + record.deliveryCount().orElseThrow() + " " + now + " " + record.value());
                }
            }
        }
    }
}
