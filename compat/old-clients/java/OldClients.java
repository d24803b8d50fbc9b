import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.stream.Stream;

/** Runs Scenario with each jar of kafka-clients, several at a time, each with classes of its own: OldClients BOOTSTRAP JARS CLASSES [VERSION]... */
public final class OldClients {
    /** They mostly wait. */
    private static final int AT_A_TIME = 5;
    private static final int LIMIT_S = 300;

    private static final AtomicInteger PASSED = new AtomicInteger();
    private static final AtomicInteger FAILED = new AtomicInteger();

    private OldClients() {}

    public static void main(String[] arguments) throws Exception {
        List<String> wanted = List.of(arguments).subList(3, arguments.length);
        List<Path> jars = new ArrayList<>();
        try (Stream<Path> files = Files.list(Path.of(arguments[1]))) {
            files.filter(it -> it.toString().endsWith(".jar")).sorted().forEach(jars::add);
        }
        ExecutorService threads = Executors.newFixedThreadPool(AT_A_TIME);
        for (Path jar : jars) {
            String version = jar.getFileName().toString().replaceAll("kafka-clients-|\\.jar", "");
            if (wanted.isEmpty() || wanted.contains(version)) {
                threads.execute(() -> runWith(version, jar, Path.of(arguments[2]), arguments[0]));
            }
        }
        threads.shutdown();
        if (!threads.awaitTermination(LIMIT_S, TimeUnit.SECONDS)) {
            FAILED.incrementAndGet();
            System.out.println("FAIL no end within " + LIMIT_S + " s");
        }
        // Threads of clients that did not end would keep the process.
        System.exit(FAILED.get() > 0 || PASSED.get() == 0 ? 1 : 0);
    }

    private static void runWith(String version, Path jar, Path classes, String bootstrap) {
        String name = "old-" + version + "-" + System.nanoTime();
        BiConsumer<String, Throwable> ended = (step, failure) -> tell(version, step, failure);
        try (URLClassLoader loader = new URLClassLoader(new URL[] {jar.toUri().toURL(), classes.toUri().toURL()})) {
            // Where clients look for the classes that their settings name.
            Thread.currentThread().setContextClassLoader(loader);
            loader.loadClass("Scenario").getMethod("run", String.class, String.class, BiConsumer.class).invoke(null, bootstrap, name, ended);
        } catch (Exception failure) {
            tell(version, "begins", failure);
        }
    }

    private static void tell(String version, String step, Throwable failure) {
        String line = "kafka-clients " + version + " " + step + System.lineSeparator();
        if (failure == null) {
            PASSED.incrementAndGet();
            System.out.print("ok   " + line);
            return;
        }
        FAILED.incrementAndGet();
        StringWriter trace = new StringWriter();
        failure.printStackTrace(new PrintWriter(trace));
        System.out.print(trace + "FAIL " + line);
    }
}
