"""A memory snapshot computed over in plain Python: what memsnap's figures are held against."""

import collections
import io
import pickle


class _DataOnly(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"a snapshot asks for {module}.{name}")


def load(data):
    """A pickle that holds data alone."""
    return _DataOnly(io.BytesIO(data)).load()


def rounded(size):
    return (size + 511) // 512 * 512


def same(a, b):
    """The same types and values all the way down; tuples and lists are told apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


def as_json(value):
    """What a value is once JSON has had it."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def figures(snapshot, device=0):
    """Totals of one device: levels in bytes, after rounding to 512 where the trace tells requested sizes."""
    trace = snapshot["device_traces"][device] if device < len(snapshot.get("device_traces", [])) else []
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    blocks = {block["address"]: block for segment in segments for block in segment["blocks"]}
    live_at_end = {address: b["size"] for address, b in blocks.items() if b["state"] == "active_allocated"}

    # Backwards: what is live before each event. Then forwards with the sizes that this found.
    size_of, live = {}, dict(live_at_end)
    for index in range(len(trace) - 1, -1, -1):
        event = trace[index]
        if event["action"] == "free_requested":
            assert event["addr"] not in live, (index, event)
            live[event["addr"]] = rounded(event["size"])
        elif event["action"] == "alloc":
            size_of[index] = live.pop(event["addr"])
    level = peak = sum(live.values())
    begin, peak_event, now = level, None, dict(live)
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            now[event["addr"]] = size_of[index]
            level += size_of[index]
        elif event["action"] == "free_requested":
            level -= now.pop(event["addr"])
        if level > peak:
            peak, peak_event = level, index
    assert now == live_at_end
    reserved = sum(segment["total_size"] for segment in segments)
    return {
        "events": len(trace),
        "actions": dict(collections.Counter(event["action"] for event in trace)),
        "begin": begin,
        "peak": peak,
        "peak_event": peak_event,
        "end": level,
        "reserved": reserved,
        "segments": len(segments),
        "inactive": sum(b["size"] for b in blocks.values() if b["state"] == "inactive"),
    }


def replay(snapshot):
    """Every event of every device backwards from the segments; AssertionError where one contradicts them."""
    for device, trace in enumerate(snapshot["device_traces"]):
        segments, live, pending = {}, {}, {}
        for segment in snapshot["segments"]:
            if segment["device"] != device:
                continue
            segments[segment["address"]] = segment["total_size"]
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at, "blocks tile their segment"
                at += block["size"]
                if block["state"] == "active_allocated":
                    live[block["address"]] = block["size"]
                elif block["state"] == "active_pending_free":
                    pending[block["address"]] = block["size"]
            assert at == segment["address"] + segment["total_size"]
        for event in reversed(trace):
            address, size = event.get("addr"), event["size"]
            if event["action"] == "free_completed":
                assert any(base <= address and address + size <= base + total for base, total in segments.items())
                assert address not in live and address not in pending
                pending[address] = size
            elif event["action"] == "free_requested":
                live[address] = pending.pop(address)
            elif event["action"] == "alloc":
                assert live.pop(address) >= size
            elif event["action"] == "segment_alloc":
                assert segments.pop(address) == size
            elif event["action"] == "segment_free":
                assert address not in segments
                segments[address] = size
            for frame in event.get("frames", []):
                assert isinstance(frame["name"], str) and isinstance(frame["filename"], str)


#: Opcodes that the web viewer's reader knows.
VIEWER_OPCODES = set(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 MEMOIZE "
    "BINPUT LONG_BINPUT BINGET LONG_BINGET".split()
)
