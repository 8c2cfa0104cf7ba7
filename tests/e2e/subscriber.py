"""A router's index of KV events, written from docs/guide/routing.md: libzmq by
ctypes, a reader of msgpack, and the rules for numbers that are missing. It
shares no code with who publishes."""
import ctypes
import struct
from ctypes import c_char_p, c_int, c_size_t, c_void_p

SUB, DEALER = 2, 5
SUBSCRIBE, RCVMORE, LINGER, RCVHWM, RCVTIMEO = 6, 13, 17, 24, 27
SNDTIMEO = 28
PUBLICKEY, SECRETKEY, SERVERKEY = 48, 49, 50
END = (1 << 64) - 1

_zmq = None


def zmq():
    global _zmq
    if _zmq is None:
        _zmq = ctypes.CDLL("libzmq.so.5", use_errno=True)
        _zmq.zmq_ctx_new.restype = c_void_p
        _zmq.zmq_socket.restype = c_void_p
        _zmq.zmq_socket.argtypes = [c_void_p, c_int]
        _zmq.zmq_connect.argtypes = [c_void_p, c_char_p]
        _zmq.zmq_setsockopt.argtypes = [c_void_p, c_int, c_void_p, c_size_t]
        _zmq.zmq_getsockopt.argtypes = [c_void_p, c_int, c_void_p,
                                        ctypes.POINTER(c_size_t)]
        _zmq.zmq_recv.argtypes = [c_void_p, c_void_p, c_size_t, c_int]
        _zmq.zmq_send.argtypes = [c_void_p, c_char_p, c_size_t, c_int]
        _zmq.zmq_close.argtypes = [c_void_p]
        _zmq.zmq_ctx_term.argtypes = [c_void_p]
    return _zmq


class Socket:
    def __init__(self, kind, url, **options):
        self._context = zmq().zmq_ctx_new()
        self._socket = zmq().zmq_socket(self._context, kind)
        self._buffer = ctypes.create_string_buffer(4 << 20)
        for option, value in ((LINGER, 0), *options.pop("set", ())):
            data = (value if isinstance(value, bytes)
                    else struct.pack("i", value))
            assert zmq().zmq_setsockopt(self._socket, option, data,
                                        len(data)) == 0
        assert zmq().zmq_connect(self._socket, url.encode()) == 0

    def close(self):
        zmq().zmq_close(self._socket)
        zmq().zmq_ctx_term(self._context)

    def send(self, *parts):
        for i, part in enumerate(parts):
            assert zmq().zmq_send(self._socket, part, len(part),
                                  2 if i + 1 < len(parts) else 0) >= 0

    def receive(self, wait_ms):
        """All parts of a message, or None."""
        limit = struct.pack("i", wait_ms)
        zmq().zmq_setsockopt(self._socket, RCVTIMEO, limit, 4)
        parts, more, size = [], c_int(1), c_size_t(4)
        while more.value:
            got = zmq().zmq_recv(self._socket, self._buffer,
                                 len(self._buffer), 0)
            if got < 0:
                return None
            parts.append(ctypes.string_at(self._buffer, got))
            zmq().zmq_getsockopt(self._socket, RCVMORE, ctypes.byref(more),
                                 ctypes.byref(size))
        return parts


def keypair():
    """(public, secret), 40 characters each."""
    made = [ctypes.create_string_buffer(41) for _ in range(2)]
    assert zmq().zmq_curve_keypair(*made) == 0
    return tuple(one.value for one in made)


def curve(server, mine):
    """Options of a socket: the server's public key, a pair of one's own."""
    return ((SERVERKEY, server), (PUBLICKEY, mine[0]), (SECRETKEY, mine[1]))


def unpack(data):
    value, at = _unpack(data, 0)
    assert at == len(data), "something is left over"
    return value


def _many(data, at, count):
    out = []
    for _ in range(count):
        value, at = _unpack(data, at)
        out.append(value)
    return out, at


def _pairs(data, at, count):
    flat, at = _many(data, at, 2 * count)
    assert len(set(flat[::2])) == count
    return dict(zip(flat[::2], flat[1::2])), at


def _unpack(data, at):
    form, at = data[at], at + 1
    if form < 0x80:
        return form, at
    if form < 0x90:
        return _pairs(data, at, form & 15)
    if form < 0xa0:
        return _many(data, at, form & 15)
    if form < 0xc0:
        end = at + (form & 31)
        return data[at:end].decode(), end
    if form in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[form], at
    if form == 0xcb:
        return struct.unpack_from(">d", data, at)[0], at + 8
    kind = {0xc4: "B", 0xcc: "B", 0xcd: "H", 0xce: "I", 0xcf: "Q", 0xd9: "B",
            0xda: "H", 0xdc: "H", 0xdd: "I", 0xde: "H"}[form]
    [value] = struct.unpack_from(">" + kind, data, at)
    at += struct.calcsize(kind)
    if form in (0xdc, 0xdd):
        return _many(data, at, value)
    if form == 0xde:
        return _pairs(data, at, value)
    if form in (0xd9, 0xda):
        return data[at:at + value].decode(), at + value
    if form == 0xc4:
        return data[at:at + value], at + value
    return value, at


class Index:
    """What a router believes of one topic, from its events alone."""

    def __init__(self, topic):
        self.locality = "REMOTE" if topic.startswith("kv@pool:") else "LOCAL"
        self.next = None  # the number of the next message; None: any
        self.blocks = {}  # hash: media
        self.parents, self.tokens = {}, {}
        self.events = 0
        self.cleared = 0
        # Blocks that a message has after a child of theirs, which it stored
        # while they were not known.
        self.late = set()
        self._awaited = set()

    def message(self, number, payload):
        """False: messages before it are missing."""
        if self.next is not None and number < self.next:
            return True  # it was read already
        _, events, rank = unpack(payload)
        assert rank == 0
        if number != self.next and events[0]["type"] != "AllBlocksCleared":
            return False
        self.next = number + 1
        self._awaited.clear()
        for event in events:
            self._event(event)
        return True

    def _event(self, event):
        self.events += 1
        assert event["ownership"] == "larder"
        if event["type"] == "AllBlocksCleared":
            self.cleared += 1
            self.blocks.clear()
            return
        assert event["locality"] == self.locality
        medium, hashes = event["medium"], event["block_hashes"]
        assert hashes and len(set(hashes)) == len(hashes)
        if event["type"] == "BlockRemoved":
            for one in hashes:
                self.blocks[one].remove(medium)  # it was there
            return
        assert event["type"] == "BlockStored"
        size = event["block_size"]
        assert len(event["token_ids"]) == size * len(hashes)
        parent = event["parent_block_hash"]
        if not self.blocks.get(parent):
            self._awaited.add(parent)
        self.late |= self._awaited.intersection(hashes)
        for i, one in enumerate(hashes):
            media = self.blocks.setdefault(one, set())
            assert medium not in media, "stored twice"
            media.add(medium)
            mine = tuple(event["token_ids"][i * size:(i + 1) * size])
            assert self.parents.setdefault(one, parent) == parent
            assert self.tokens.setdefault(one, mine) == mine
            parent = one

    def longest(self, hashes):
        """Blocks from the first on: in CPU, in STORAGE, in any."""
        out = []
        for wanted in ({"CPU"}, {"STORAGE"}, {"CPU", "STORAGE"}):
            count = 0
            while (count < len(hashes)
                   and self.blocks.get(hashes[count], set()) & wanted):
                count += 1
            out.append(count)
        return tuple(out)


class Router:
    """Subscribes to topics, and asks again for what it missed. lose(number):
    whether a message is lost on its way."""

    def __init__(self, url, replay, topic=b"kv@", lose=lambda number: False,
                 keys=()):
        """keys: as curve() gives them, where the node asks for some."""
        self.sub = Socket(SUB, url, set=((RCVHWM, 100000), (SUBSCRIBE, topic),
                                         *keys))
        self.dealer = Socket(DEALER, replay, set=keys) if replay else None
        self.lose = lose
        self.indexes = {}
        self.replays = self.resets = 0

    def close(self):
        self.sub.close()
        if self.dealer is not None:
            self.dealer.close()

    def index(self, topic):
        return self.indexes.setdefault(topic, Index(topic))

    def read(self, wait_ms=50):
        """All that has come. Gives the number of messages."""
        count = 0
        while (parts := self.sub.receive(wait_ms)) is not None:
            topic, number, payload = parts
            number = int.from_bytes(number, "big")
            count += 1
            if self.lose(number):
                continue
            index = self.index(topic.decode())
            if not index.message(number, payload):
                self._replay(topic.decode(), index.next or 0)
                self.index(topic.decode()).message(number, payload)
        return count

    def sync(self, topic, wait_ms=2000):
        """Asks for what came after the last message that was read: the last
        ones may be lost as well."""
        index = self.index(topic)
        self._replay(topic, index.next or 0, wait_ms)

    def _replay(self, topic, first, wait_ms=2000):
        index = self.index(topic)
        self.replays += 1
        for number, payload in self.ask(topic, first, wait_ms):
            if not index.message(number, payload):
                # What is before it is not kept any more.
                self._reset(topic, wait_ms)
                return

    def _reset(self, topic, wait_ms):
        self.resets += 1
        assert self.ask(topic, END, wait_ms) == []
        self.indexes[topic] = Index(topic)

    def ask(self, topic, first, wait_ms=2000):
        self.dealer.send(b"", first.to_bytes(8, "big"), topic.encode())
        found = []
        while (parts := self.dealer.receive(wait_ms)) is not None:
            empty, named, number, payload = parts
            assert empty == b""
            number = int.from_bytes(number, "big")
            if number == END:
                assert named == payload == b""
                return found
            assert named == topic.encode()
            found.append((number, payload))
        raise AssertionError("a replay has no end")
