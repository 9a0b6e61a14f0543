import java.io.BufferedWriter;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.java.tuple.Tuple5;

/** The target of the rows: nothing at all, or a CSV file for each subtask. */
class Target implements Serializable {
    static Target of(String name, String folder) {
        return name.equals("csv") ? new Csv(folder) : new Target();
    }

    void open(int subtask) throws IOException {}

    void write(Tuple5<Long, Double, String, String, Long> row) throws IOException {}

    void flush() throws IOException {}

    void close() throws IOException {}

    private static final class Csv extends Target {
        private final String folder;
        private transient BufferedWriter writer;
        private transient StringBuilder line;

        Csv(String folder) {
            this.folder = folder;
        }

        @Override
        void open(int subtask) throws IOException {
            Files.createDirectories(Path.of(folder));
            writer = Files.newBufferedWriter(Path.of(folder, "part-" + subtask + ".csv"));
            line = new StringBuilder();
        }

        @Override
        void write(Tuple5<Long, Double, String, String, Long> row) throws IOException {
            line.setLength(0);
            line.append(row.f0).append(',').append(row.f1).append(',').append(row.f2).append(',').append(row.f3);
            writer.append(line.append(',').append(row.f4).append('\n'));
        }

        @Override
        void flush() throws IOException {
            writer.flush();
        }

        @Override
        void close() throws IOException {
            if (writer != null) {
                writer.close();
            }
        }
    }
}
