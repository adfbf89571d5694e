// A map from numbers to strings that grows, changes and is read in order: some 100 MiB that a collector walks.
import java.util.HashMap;

public class Index {
    public static void main(String[] arguments) {
        HashMap<Integer, String> index = new HashMap<>();
        long state = 1, digest = 0;
        for (int step = 0; step < 1_800_000; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int key = (int) (state >>> 33) % 700_000;
            if (step % 5 == 4) index.remove(key);
            else index.put(key, "visit " + key + " of " + step);
        }
        for (int key = 0; key < 700_000; key++) {
            String value = index.get(key);
            if (value != null) digest = digest * 31 + value.hashCode();
        }
        System.out.println(index.size() + " " + Long.toHexString(digest));
    }
}
