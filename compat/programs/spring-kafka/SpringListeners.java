import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.KafkaException;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Listeners that send what they hear to another topic, until their input ends: SpringListeners BOOTSTRAP dead-letters IN OUT, which
 * refuses values that begin with "bad", or SpringListeners BOOTSTRAP transactions IN OUT, which sends each value twice at once and
 * fails once between the two for every value that ends with 7. IN is also the group's name, and OUT the prefix of transactions.
 */
public final class SpringListeners {
    private static final int TRIES = 3;

    private final String out;
    private final DefaultKafkaProducerFactory<String, String> producers;
    private final KafkaTemplate<String, String> template;
    private final ConcurrentMessageListenerContainer<String, String> container;

    private SpringListeners(String bootstrap, String in, String out, boolean transactional) {
        this.out = out;
        producers = new DefaultKafkaProducerFactory<>(Map.of(
                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class,
                ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class));
        if (transactional) {
            producers.setTransactionIdPrefix(out);
        }
        template = new KafkaTemplate<>(producers);
        ContainerProperties properties = new ContainerProperties(in);
        properties.setGroupId(in);
        container = new ConcurrentMessageListenerContainer<>(
                new DefaultKafkaConsumerFactory<>(Map.of(
                        ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                        ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                        ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
                        // After a failure it goes back, but first waits for the fetch that is on its way.
                        ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 50,
                        ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class,
                        ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class)),
                properties);
        container.setConcurrency(2);
    }

    public static void main(String[] arguments) throws Exception {
        SpringListeners listeners = new SpringListeners(arguments[0], arguments[2], arguments[3], arguments[1].equals("transactions"));
        switch (arguments[1]) {
            case "dead-letters" -> listeners.sendDeadLetters();
            case "transactions" -> listeners.useTransactions();
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        listeners.container.start();
        while (System.in.read() >= 0) {}
        listeners.container.stop();
        listeners.producers.destroy();
    }

    private void sendDeadLetters() {
        var recoverer = new DeadLetterPublishingRecoverer(template);
        var handler = new DefaultErrorHandler(recoverer, new FixedBackOff(0, TRIES - 1));
        // Each try would be told with its stack.
        handler.setLogLevel(KafkaException.Level.DEBUG);
        container.setCommonErrorHandler(handler);
        listen(record -> {
            template.send(out, record.key(), record.value());
            if (record.value().startsWith("bad")) {
                throw new IllegalStateException("refused");
            }
        });
    }

    private void useTransactions() {
        template.executeInTransaction(sender -> sender.send(out, "begun", "first") != null && sender.send(out, "begun", "second") != null);
        try {
            template.executeInTransaction(sender -> {
                sender.send(out, "never", "aborted").join();
                throw new IllegalStateException("the failure that is wanted");
            });
        } catch (IllegalStateException wanted) {
            System.out.println(wanted.getMessage());
        }
        container.getContainerProperties().setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        container.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(new FixedBackOff(0, TRIES - 1)));
        Set<String> failed = ConcurrentHashMap.newKeySet();
        listen(record -> {
            template.send(out, record.key(), record.value() + " first");
            if (record.value().endsWith("7") && failed.add(record.value())) {
                throw new IllegalStateException("the failure that is wanted");
            }
            template.send(out, record.key(), record.value() + " second");
        });
    }

    private void listen(MessageListener<String, String> listener) {
        container.getContainerProperties().setMessageListener(listener);
    }
}
