import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.flink.streaming.runtime.operators.CheckpointCommitter;

/** A committer that keeps the newest committed checkpoint of each subtask in a separate file, replaced as a whole. */
final class MarkerFile extends CheckpointCommitter {
    private final String folder;

    MarkerFile(String folder) {
        this.folder = folder;
    }

    @Override
    public void open() {}

    @Override
    public void close() {}

    @Override
    public void createResource() throws IOException {
        Files.createDirectories(Path.of(folder));
    }

    @Override
    public void commitCheckpoint(int subtask, long checkpointId) throws IOException {
        Path fresh = file(subtask).resolveSibling(subtask + ".new");
        Files.writeString(fresh, Long.toString(checkpointId));
        Files.move(fresh, file(subtask), StandardCopyOption.ATOMIC_MOVE);
    }

    @Override
    public boolean isCheckpointCommitted(int subtask, long checkpointId) throws IOException {
        return Files.exists(file(subtask)) && checkpointId <= Long.parseLong(Files.readString(file(subtask)));
    }

    private Path file(int subtask) {
        return Path.of(folder, Integer.toString(subtask));
    }
}
