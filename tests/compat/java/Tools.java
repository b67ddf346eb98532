// Runs Apache Kafka's own command line tools in one JVM, one after the other: a JVM each would cost seconds.
//
// A line on standard input names a run: the tool's class, what it reads from its standard input, its arguments, all but the
// class in base64, separated by spaces. The answer is a line with the exit status and the number of bytes, then what the tool printed.

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

import org.apache.kafka.common.utils.Exit;

public class Tools {
    static final class Exited extends Error {
        Exited(int status) {
            super("exit " + status, null, false, false);
        }
    }

    static Integer status;

    static void exit(int code, String message) {
        if (status == null) {
            status = code;
        }
        if (message != null) {
            System.err.println(message);
        }
        throw new Exited(code);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Tools::exit);
        Exit.setHaltProcedure(Tools::exit);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] parts = line.split(" ");
            List<String> values = new ArrayList<>();
            for (int at = 2; at < parts.length; at++) {
                values.add(new String(Base64.getDecoder().decode(parts[at].substring(1)), StandardCharsets.UTF_8));
            }
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(parts[1].substring(1))));
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            status = null;
            run(parts[0], values.toArray(new String[0]), capture);
            capture.flush();
            byte[] bytes = printed.toByteArray();
            answers.println((status == null ? 0 : status) + " " + bytes.length);
            answers.write(bytes);
            answers.flush();
        }
    }

    static void run(String tool, String[] arguments, PrintStream capture) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException wrapped) {
            if (!(wrapped.getCause() instanceof Exited)) {
                wrapped.getCause().printStackTrace(capture);
                status = 1;
            }
        }
    }
}
