#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// Writes the pickle that torch.cuda.memory's tools and the web viewer open: protocol 2, 3 or 4, only the opcodes that
/// the viewer's reader knows (integers of the further fields beyond 2040 bits excepted), containers filled in batches
/// of 1000, texts and stacks once. Whatever read_snapshot() read is written back.
void write_pickle(const Snapshot& snapshot, std::ostream& out, int protocol = 4);

/// The same structure as JSON: tuples are arrays, keys that are no str their JSON text, floats that are not finite
/// null.
void write_json(const Snapshot& snapshot, std::ostream& out);

/// Perfetto / chrome://tracing: counter tracks of allocated, active and reserved bytes for each device, the annotations
/// as slices, out-of-memory errors as instants.
void write_trace(const Snapshot& snapshot, std::ostream& out);

/// Writes a whole file or leaves it as it was: beside it, then renamed. What is no regular file is written in place.
/// Throws std::runtime_error: "cannot write 'x.pickle': No space left on device".
void write_file(const std::string& path, std::string_view contents);

/// Why write_file could not even begin ("No such file or directory"), or "". Leaves everything as it is.
[[nodiscard]] std::string why_not_writable(const std::string& path);

}  // namespace warpmeter::reports::snapshot
