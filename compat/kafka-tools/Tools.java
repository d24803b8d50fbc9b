import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools in one JVM, because each of their own would take more than a second to start. A line of
 * input is a request in JSON, a line of output its answer: {"id", "main", "args", "stdin"} starts the main method of a
 * class in a thread of its own; {"id", "do": "look"} answers what it has printed and, when it has ended, its exit code;
 * {"id", "do": "stop"} does what Ctrl-C does. The end of the input ends the process.
 */
public class Tools {
    /** What a tool's thread, and the threads that it starts, read and write in place of the process's own streams. */
    static class Run extends Thread {
        final String main;
        final String[] args;
        final ByteArrayInputStream in;
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final Queue<Runnable> shutdownHooks = new ConcurrentLinkedQueue<>();
        /** The first exit: a tool may catch what stands for it here. */
        volatile Integer exit;
        /** Its exit code, once its shutdown hooks have ended, too. */
        volatile Integer code;

        Run(String main, String[] args, String stdin) {
            this.main = main;
            this.args = args;
            this.in = new ByteArrayInputStream(stdin.getBytes(UTF_8));
            setDaemon(true);
        }

        @Override
        public void run() {
            current.set(this);
            int end = 0;
            try {
                Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
            } catch (InvocationTargetException thrown) {
                if (!(thrown.getCause() instanceof Exited)) {
                    thrown.getCause().printStackTrace(System.err);
                    end = 1;
                }
            } catch (ReflectiveOperationException wrong) {
                wrong.printStackTrace(System.err);
                end = 1;
            }
            exit(end);
            runShutdownHooks();
            code = exit;
        }

        void pressCtrlC() {
            new Thread(() -> {
                current.set(this);
                runShutdownHooks();
            }).start();
        }

        /** A hook may wait for the main method to end, which is why Ctrl-C runs them beside it. */
        private void runShutdownHooks() {
            for (Runnable hook = shutdownHooks.poll(); hook != null; hook = shutdownHooks.poll()) {
                hook.run();
            }
        }

        synchronized void exit(int end) {
            if (exit == null) {
                exit = end;
            }
        }
    }

    static class Exited extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    static final InheritableThreadLocal<Run> current = new InheritableThreadLocal<>();

    public static void main(String[] args) throws Exception {
        InputStream requests = System.in;
        PrintStream answers = System.out;
        PrintStream log = System.err;
        System.setIn(new InputStream() {
            @Override
            public int read() {
                byte[] one = new byte[1];
                return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
            }

            @Override
            public int read(byte[] bytes, int offset, int length) {
                Run run = current.get();
                return run == null ? -1 : run.in.read(bytes, offset, length);
            }
        });
        System.setOut(new PrintStream(new PerRun(log, false), true, UTF_8));
        System.setErr(new PrintStream(new PerRun(log, true), true, UTF_8));
        Exit.Procedure exit = (code, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            current.get().exit(code);
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> current.get().shutdownHooks.add(hook));

        ObjectMapper json = new ObjectMapper();
        Map<Integer, Run> runs = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = json.readTree(line);
            int id = request.get("id").asInt();
            if (request.has("main")) {
                String[] words = json.convertValue(request.get("args"), String[].class);
                Run run = new Run(request.get("main").asText(), words, request.get("stdin").asText());
                runs.put(id, run);
                run.start();
            } else {
                Run run = runs.get(id);
                if (request.get("do").asText().equals("stop")) {
                    run.pressCtrlC();
                }
                // The code first: what a run printed before its end is then there.
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("code", run.code);
                answer.put("out", run.out.toString(UTF_8));
                answer.put("err", run.err.toString(UTF_8));
                answers.println(json.writeValueAsString(answer));
                answers.flush();
            }
        }
        System.exit(0);
    }

    /** Standard output or standard error of whichever run the writing thread belongs to. */
    static class PerRun extends OutputStream {
        final PrintStream elsewhere;
        final boolean errors;

        PerRun(PrintStream elsewhere, boolean errors) {
            this.elsewhere = elsewhere;
            this.errors = errors;
        }

        OutputStream target() {
            Run run = current.get();
            return run == null ? elsewhere : errors ? run.err : run.out;
        }

        @Override
        public void write(int oneByte) {
            write(new byte[] {(byte) oneByte}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            OutputStream target = target();
            if (target instanceof ByteArrayOutputStream buffer) {
                buffer.write(bytes, offset, length);
            } else {
                elsewhere.write(bytes, offset, length);
            }
        }
    }
}
