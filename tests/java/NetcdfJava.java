import java.io.StringReader;
import java.nio.file.*;
import java.util.*;
import ucar.ma2.*;
import ucar.nc2.*;
import ucar.nc2.dataset.*;
import ucar.nc2.dt.GridDatatype;
import ucar.nc2.dt.grid.GridDataset;
import ucar.nc2.ncml.NcMLReader;

/**
 * Compares the files of an archive with the files of a layout by netcdf-java, the library with which
 * ERDDAP and THREDDS read: each file as it is, with its coordinate systems, and all files of a
 * directory joined along time.
 *
 *     java NetcdfJava.java ARCHIVE MOUNT    directories with files of the same names
 */
public class NetcdfJava {
    /** Returns attributes, but those that each writer adds. */
    static SortedMap<String, String> attributes(Iterable<Attribute> all) {
        SortedMap<String, String> found = new TreeMap<>();
        for (Attribute one : all) {
            String name = one.getShortName();
            if (!name.startsWith("_") || name.equals("_FillValue")) {
                found.put(name, one.getDataType() + " " + (one.isString() ? one.getStringValue() : one.getValues()));
            }
        }
        return found;
    }

    /** Returns all that a file says, and the values of its variables. */
    static SortedMap<String, Object> content(NetcdfFile file) throws Exception {
        SortedMap<String, Object> found = new TreeMap<>();
        found.put("", attributes(file.getGlobalAttributes()).toString());
        for (Variable one : file.getVariables()) {
            String head = one.getDataType() + " " + one.getDimensionsString() + " " + Arrays.toString(one.getShape());
            found.put(one.getFullName(), head + " " + attributes(one.attributes()) + " " + values(one.read()));
        }
        return found;
    }

    static String values(Array items) {
        StringBuilder text = new StringBuilder();
        for (IndexIterator each = items.getIndexIterator(); each.hasNext(); ) {
            text.append(each.getObjectNext()).append(' ');
        }
        return text.toString();
    }

    /** Returns the coordinate systems, the grids and the dates that a data server makes of a file. */
    static SortedMap<String, Object> grids(NetcdfDataset file) throws Exception {
        SortedMap<String, Object> found = content(file);
        for (GridDatatype grid : new GridDataset(file).getGrids()) {
            String dates = String.valueOf(grid.getCoordinateSystem().getCalendarDates());
            found.put("grid " + grid.getFullName(), grid.getCoordinateSystem() + " " + dates + " " + grid.getInfo());
        }
        return found;
    }

    static void compare(String what, SortedMap<String, Object> old, SortedMap<String, Object> shown) {
        if (!old.equals(shown)) {
            System.out.println(what + " differs:\n" + old + "\n" + shown);
            System.exit(1);
        }
    }

    /** Joins the files of a directory along time, as a collection of THREDDS. */
    static SortedMap<String, Object> joined(Path directory, String ending) throws Exception {
        String text = "<netcdf xmlns='http://www.unidata.ucar.edu/namespaces/netcdf/ncml-2.2'>"
            + "<aggregation dimName='time' type='joinExisting'><scan location='" + directory + "' suffix='" + ending
            + "'/></aggregation></netcdf>";
        try (NetcdfDataset all = NcMLReader.readNcML(new StringReader(text), null)) {
            return content(all);
        }
    }

    public static void main(String[] directories) throws Exception {
        Path[] roots = {Paths.get(directories[0]), Paths.get(directories[1])};
        String[] names = roots[0].toFile().list();
        Arrays.sort(names);
        for (String name : names) {
            List<SortedMap<String, Object>> plain = new ArrayList<>(), enhanced = new ArrayList<>();
            for (Path root : roots) {
                try (NetcdfFile file = NetcdfFiles.open(root.resolve(name).toString())) {
                    plain.add(content(file));
                }
                try (NetcdfDataset file = NetcdfDatasets.openDataset(root.resolve(name).toString())) {
                    enhanced.add(grids(file));
                }
            }
            compare(name, plain.get(0), plain.get(1));
            compare(name + " with coordinates", enhanced.get(0), enhanced.get(1));
        }
        String ending = names[0].substring(names[0].lastIndexOf('.'));
        compare("the collection", joined(roots[0], ending), joined(roots[1], ending));
        System.out.println("ok: netcdf-java, " + names.length + " files and their collection");
    }
}
