// Runs OldClient with the Java clients of many releases in one JVM, each from its own jar:
// java OldClients.java CLASS_PATH ADDRESS PREFIX JAR...
//
// CLASS_PATH has the compiled OldClient and what the jars need besides. Prints what OldClient prints, after the jar's name.

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;

public class OldClients {
    public static void main(String[] given) throws Exception {
        boolean isSound = true;
        for (int at = 3; at < given.length; at++) {
            File jar = new File(given[at]);
            String version = jar.getName().replaceAll("^kafka-clients-|\\.jar$", "");
            List<URL> urls = new ArrayList<>(List.of(jar.toURI().toURL()));
            for (String path : given[0].split(File.pathSeparator)) {
                urls.add(new File(path).toURI().toURL());
            }
            System.out.println(version);
            try (URLClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]), ClassLoader.getPlatformClassLoader())) {
                Thread.currentThread().setContextClassLoader(loader);
                Object passed = loader.loadClass("OldClient").getMethod("run", String.class, String.class)
                    .invoke(null, given[1], given[2] + "-" + version.replace('.', '_'));
                isSound &= (Boolean) passed;
            }
        }
        System.out.println(isSound ? "done" : "failed");
        System.exit(isSound ? 0 : 1);
    }
}
