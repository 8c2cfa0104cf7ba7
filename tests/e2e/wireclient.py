"""The protocol of `larder serve` spoken by hand: frames, authentication, rings
and extents, written from src/wire/wire.h and src/net/ring.h and sharing no
code with the library. It checks nothing for the caller's sake, so that it can
also say what no client would say.
"""
import array
import functools
import hashlib
import hmac
import ctypes
import mmap
import os
import select
import socket
import struct
import time

MAGIC = 0x3152444C
FRAME = struct.Struct("<IHHQQIIII")
FRAME_BYTES = 40
BODY_MAX = 512 << 10
HELLO_MAX = 1024
PAYLOAD_MAX = 64 << 20
BATCH_MAX = 4096
VALUE_MAX = 60 << 20
FOREVER = 0xFFFFFFFF
REPLY, SILENT = 1, 2
RESULT_CHECKED = 1
PLAIN, CHECKED, ABORT = 0, 1, 2

(HELLO, AUTH, PING, ATTACH, EXTENT, REVOKE, REVOKED, SPACE, RESET, MATCH,
 EXISTS, REMOVE, FLUSH, STATS, METRICS, REPORT, GET, PUT, LEASE, RELEASE,
 RESERVE, COMMIT, ADMIN) = (1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22,
                            23, 24, 32, 33, 48, 49, 50, 51, 64)
LIST, STAGE = 27, 28
FEATURE_HANDOFF = 1
FEATURE_RANGES = 4
STAGE_MEMBER = 32
BATCH_TOKEN = 0x20000000
OPCODES = (HELLO, AUTH, PING, ATTACH, EXTENT, REVOKE, REVOKED, SPACE, RESET,
           MATCH, EXISTS, REMOVE, FLUSH, STATS, METRICS, REPORT, GET, PUT,
           LEASE, RELEASE, RESERVE, COMMIT, ADMIN, STAGE)

OK, PRESENT, MISS, PENDING = 0, 1, 2, 3
E_INVALID, E_SIZE, E_SPACE, E_FULL = -1, -2, -4, -5
E_DEADLINE, E_CANCELED, E_BUSY, E_STALE = -6, -7, -8, -10
E_LIMIT, E_UNSUPPORTED = -11, -12
E_VERSION, E_CORRUPT, E_SECRET, E_DENIED = -64, -65, -67, -69
CAUSES = ("none", "absent", "evicted", "corrupt", "stale", "deadline",
          "tier_off", "full", "io", "offline", "paused", "other")

RING_BYTES = 1 << 20
RING_HEAD = 4096
RING_MAP = RING_HEAD + 2 * RING_BYTES
PAGE = 65536


class Ended(Exception):
    """The daemon has closed the connection."""


# ---- CRC-32C ---------------------------------------------------------------

def _tables():
    first = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        first.append(byte)
    tables = [first]
    for _ in range(7):
        last = tables[-1]
        tables.append([first[v & 255] ^ v >> 8 for v in last])
    return tables


_T = _tables()


def crc32c(data, crc=0):
    return (_known(data) if crc == 0 and len(data) > 65536
            and isinstance(data, bytes) else _crc32c(data, crc))


@functools.lru_cache(256)
def _known(data):
    return _crc32c(data, 0)


def _crc32c(data, crc):
    """Eight bytes at a time, which is quick enough for some hundred KiB."""
    t0, t1, t2, t3, t4, t5, t6, t7 = _T
    crc ^= 0xFFFFFFFF
    data = bytes(data)
    words = len(data) // 8
    for low, high in struct.iter_unpack("<II", data[:words * 8]):
        low ^= crc
        crc = (t7[low & 255] ^ t6[low >> 8 & 255] ^ t5[low >> 16 & 255]
               ^ t4[low >> 24] ^ t3[high & 255] ^ t2[high >> 8 & 255]
               ^ t1[high >> 16 & 255] ^ t0[high >> 24])
    for byte in data[words * 8:]:
        crc = t0[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# ---- frames and bodies -----------------------------------------------------

def frame(opcode, body=b"", *, payload=0, ident=0, epoch=0, arg=FOREVER,
          flags=0, magic=MAGIC, seal=True, body_bytes=None):
    """Header and body; payload is only its length. body_bytes: a lie."""
    size = len(body) if body_bytes is None else body_bytes
    head = FRAME.pack(magic, opcode, flags, ident, epoch, size, payload,
                      arg & 0xFFFFFFFF, 0)[:36]
    crc = crc32c(body, crc32c(head)) if seal else 0
    return head + struct.pack("<I", crc) + body


def hello_body(tenant="default", low=2, high=2, features=0, nonce=bytes(32),
               program="wireclient"):
    return struct.pack("<HHQ32s64s64s", low, high, features, nonce,
                       tenant if isinstance(tenant, bytes)
                       else tenant.encode(),
                       program if isinstance(program, bytes)
                       else program.encode())


def proof(token, client_nonce, server_nonce, epoch, tenant, server=False):
    label = b"larder-1 server " if server else b"larder-1 client "
    text = tenant.encode()
    return hmac.new(token.encode(), label + client_nonce + server_nonce
                    + struct.pack("<QQ", epoch, len(text)) + text,
                    hashlib.sha256).digest()


NO_SECRET = b"larder: no secret is configured"


def check_of(tenant, secret=NO_SECRET):
    """The check value of a tenant's secret: of who has none."""
    return hmac.new(secret, b"larder check 1" + tenant.encode(),
                    hashlib.sha256).digest()[:16]


def tier_key(tenant, secret=NO_SECRET):
    """The tenant's key for the shared tier."""
    return hmac.new(secret, b"larder shared 1" + tenant.encode(),
                    hashlib.sha256).digest()


def space_body(ident, check=None, shards=1, key=None, label=b""):
    """ident: bytes of an id, or a text that stands for one. The check and the
    key are of the tenant's secret: the same in all its spaces. label: any
    bytes."""
    if isinstance(ident, str):
        ident = hashlib.sha256(ident.encode()).digest()[:16]
    check = check_of("default") if check is None else check
    key = tier_key("default") if key is None else key
    return (ident + check + struct.pack("<I", shards) + key
            + struct.pack("<I", len(label)) + label)


def key_of(name):
    return hashlib.sha256(name.encode()).digest()


def match_body(space, keys, group=0, *, flags=0, count=None, groups=1,
               reserved=0, needs=0xffffffff):
    """Of one group, or the first ones (None), of which all is needed."""
    rows = ([(group, reserved, needs)] if group is not None else
            [(i, reserved, needs) for i in range(groups)])
    return (struct.pack("<IIII", space, flags,
                        len(keys) if count is None else count, groups)
            + b"".join(struct.pack("<HHI", *row) for row in rows)
            + b"".join(keys))


def stage_body(space, keys, group=0, *, mask=0, tiers=0, percent=0,
               bytes_max=0, chunk_ns=0, speed=0, member=b"", **more):
    """member: STAGE_MEMBER in the mask, and 64 bytes."""
    return (struct.pack("<QIIQQQ", mask, tiers, percent, bytes_max, chunk_ns,
                        speed) + member
            + match_body(space, keys, group, **more))


def places_body(space, token, places, *, flags=0, more=0, count=None):
    """LEASE of what is staged: (group + 256 * more, shard, chunk)."""
    return (struct.pack("<IIII16s", space,
                        len(places) if count is None else count,
                        flags | BATCH_TOKEN, more, token)
            + b"".join(struct.pack("<HHI", *place) for place in places))


def staged(reply):
    """Lease, token, chunks found, tried and staged."""
    lease, token, found, tried = struct.unpack_from("<Q16sII", reply.body)
    return lease, token, found, tried, struct.unpack_from("<I", reply.body,
                                                          64)[0]


def name_row(key, group=0, shard=0, room=VALUE_MAX, more=0):
    return struct.pack("<32sHHIQ", key, group, shard, more, room)


def save_row(key, length, crc=0, *, parent=bytes(32), has_parent=0, depth=0,
             group=0, shard=0, flags=0, ttl_ms=0, more=0):
    return struct.pack("<32s32sIHHIIQIHH", key, parent, depth, group, shard,
                       flags, ttl_ms, length, crc, has_parent, more)


def batch_body(space, rows, flags=0, *, more=0, count=None, sizes=()):
    """sizes: (bytes, crc) of the shards behind each row's first."""
    return struct.pack("<IIII", space, len(rows) if count is None else count,
                       flags, more) + b"".join(rows) + b"".join(
                           struct.pack("<II", *size) for size in sizes)


def ends_body(rows, *, reserved=0, count=None):
    """rows: (lease, crc, how)"""
    return (struct.pack("<II", len(rows) if count is None else count, reserved)
            + b"".join(struct.pack("<QII", *row) for row in rows))


def extent_body(extent, generation, size=0, ready=0):
    return struct.pack("<IIQQ", extent, generation, size, ready)


def attach_body(ring=0, page=0, strict=0, reserved=0):
    return struct.pack("<IIII", ring, page, strict, reserved)


class Result:
    def __init__(self, fields, segs):
        (self.status, cause, self.length, self.lease, self.crc, self.flags,
         self.seg_count, self.reserved) = fields
        self.cause = CAUSES[cause]
        self.segs = segs  # (extent, generation, page, bytes)


def results_of(body):
    count, seg_count = struct.unpack_from("<II", body)
    assert len(body) == 8 + 40 * count + 16 * seg_count, "malformed results"
    at = 8 + 40 * count
    out = []
    for i in range(count):
        fields = struct.unpack_from("<iIQQIIII", body, 8 + 40 * i)
        segs = [struct.unpack_from("<IIII", body, at + 16 * k)
                for k in range(fields[6])]
        at += 16 * fields[6]
        out.append(Result(fields, segs))
    assert at == len(body), "segments that belong to no row"
    return out


class Reply:
    def __init__(self, head, body, payload=b"", fds=()):
        (_, self.opcode, self.flags, self.id, self.epoch, self.body_bytes,
         self.payload_bytes, arg, self.crc) = head
        self.status = struct.unpack("<i", struct.pack("<I", arg))[0]
        self.body = body
        self.payload = payload
        self.fds = list(fds)

    @property
    def text(self):
        return self.body.decode()

    @property
    def results(self):
        return results_of(self.body)

    @property
    def result(self):
        (one,) = results_of(self.body)
        return one

    @property
    def number(self):
        return struct.unpack("<I", self.body)[0]

    @property
    def chunks(self):
        return struct.unpack_from("<I", self.body)[0]

    def close_fds(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []


# ---- connections -----------------------------------------------------------

class Peer:
    """One connection. address: a path, or (host, port)."""

    def __init__(self, address, timeout=60.0, rcvbuf=None):
        self.address = address
        self.local = isinstance(address, str)
        self.timeout = timeout
        family = socket.AF_UNIX if self.local else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        if rcvbuf is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(address)
        if not self.local:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.fds = []
        self.epoch = 0
        self.next_id = 1
        self.replies = {}  # came before somebody asked for them
        self.told = []  # frames that answer nothing
        self.ring = None
        self.extents = {}
        self.spaces = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # bytes

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Ended(str(e)) from e

    def _more(self):
        try:
            if self.local:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 18, 8)
                self.fds += fds
            else:
                data = self.sock.recv(1 << 20)
        except ConnectionResetError as e:
            raise Ended(str(e)) from e
        if not data:
            raise Ended("end of stream")
        self.buffer += data

    def read(self, count):
        while len(self.buffer) < count:
            self._more()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def read_frame(self):
        head = FRAME.unpack(self.read(FRAME_BYTES))
        assert head[0] == MAGIC, "not a frame"
        body = self.read(head[5])
        payload = self.read(head[6])
        raw = FRAME.pack(*head)
        assert head[8] == crc32c(body, crc32c(raw[:36])), "wrong checksum"
        reply = Reply(head, body, payload)
        if reply.flags & REPLY and reply.status == OK and reply.opcode in (
                ATTACH, EXTENT):
            want = 2 if reply.opcode == ATTACH else 1
            reply.fds = self.fds[:want]
            del self.fds[:want]
        return reply

    def ended(self, timeout=None):
        """Whether the daemon closes the connection; replies are read over."""
        self.sock.settimeout(self.timeout if timeout is None else timeout)
        try:
            while True:
                self._more()
        except Ended:
            return True
        except socket.timeout:
            return False
        finally:
            self.sock.settimeout(self.timeout)

    # requests

    def start(self, opcode, body=b"", payload=b"", **fields):
        """Sends a request; gives its id."""
        ident = fields.pop("ident", None)
        if ident is None:
            ident = self.next_id
            self.next_id += 1
        fields.setdefault("epoch", self.epoch)
        self.send(frame(opcode, body, payload=len(payload), ident=ident,
                        **fields) + payload)
        return ident

    def wait(self, ident):
        while ident not in self.replies:
            one = self.read_frame()
            if one.flags & REPLY:
                self.replies[one.id] = one
            else:
                self.told.append(one)
        return self.replies.pop(ident)

    def ask(self, opcode, body=b"", payload=b"", **fields):
        return self.wait(self.start(opcode, body, payload, **fields))

    def hello(self, tenant="default", token=None, **fields):
        """Comes in, or gives the reply that refused it."""
        nonce = os.urandom(32)
        reply = self.ask(HELLO, hello_body(tenant, nonce=nonce, **fields))
        if reply.status != OK:
            return reply
        (self.version, auth, self.features, epoch, server_nonce,
         program) = struct.unpack("<HHQQ32s64s", reply.body)
        self.program = program.rstrip(b"\0").decode()
        assert epoch == reply.epoch
        self.epoch = epoch
        self.auth = auth
        if auth:
            mac = proof(token or "none-at-all-0000", nonce, server_nonce,
                        epoch, tenant)
            reply = self.ask(AUTH, mac)
            if reply.status == OK:
                assert hmac.compare_digest(
                    reply.body, proof(token, nonce, server_nonce, epoch,
                                      tenant, server=True)), "not the daemon"
        return reply

    def enter(self, tenant="default", token=None):
        reply = self.hello(tenant, token)
        assert reply.status == OK, reply.text
        return self

    def space(self, ident="space", shards=1, check=None):
        reply = self.ask(SPACE, space_body(ident, check, shards))
        assert reply.status == OK, reply.text
        return reply.number

    # bytes by socket

    def put(self, space, items, **fields):
        """items: (key, value) or (key, value, row fields)."""
        rows, payload = [], b""
        for key, value, *more in items:
            rows.append(save_row(key, len(value), crc32c(value),
                                 **(more[0] if more else {})))
            payload += value
        return self.ask(PUT, batch_body(space, rows), payload, **fields)

    def put_one(self, space, key, value, **row):
        reply = self.put(space, [(key, value, row)])
        assert reply.status == OK, reply.text
        return reply.result.status

    def get(self, space, keys, **fields):
        """The bytes of each key; None: a miss."""
        reply = self.ask(GET, batch_body(space, [name_row(k) for k in keys]),
                         **fields)
        assert reply.status == OK, reply.text
        out, at = [], 0
        for row in reply.results:
            out.append(None)
            if row.status == OK:
                value = reply.payload[at:at + row.length]
                at += row.length
                assert crc32c(value) == row.crc, "checksum"
                out[-1] = value
        assert at == len(reply.payload)
        return out

    # shared memory

    def attach(self):
        reply = self.ask(ATTACH, attach_body())
        assert reply.status == OK, reply.text
        ring, self.page, self.strict, zero = struct.unpack("<IIII", reply.body)
        assert (ring, zero) == (RING_BYTES, 0)
        self.ring = Ring(*reply.fds)
        return self

    def ring_ask(self, opcode, body=b"", arg=FOREVER, flags=0):
        ident = self.next_id
        self.next_id += 1
        self.ring.put(frame(opcode, body, ident=ident, epoch=self.epoch,
                            arg=arg, flags=flags, seal=False))
        return self.ring_wait(ident)

    def ring_wait(self, ident):
        end = time.monotonic() + self.timeout
        while ident not in self.replies:
            data = self.ring.take(end, self.sock)
            head = FRAME.unpack_from(data)
            assert head[0] == MAGIC and head[8] == 0
            assert FRAME_BYTES + head[5] == len(data)
            self.replies[head[3]] = Reply(head, data[FRAME_BYTES:])
        return self.replies.pop(ident)

    def extent(self, number, generation):
        """The extent's memory, mapped."""
        if (number, generation) not in self.extents:
            reply = self.ask(EXTENT, extent_body(number, generation))
            assert reply.status == OK, reply.text
            got = struct.unpack("<IIQQ", reply.body)
            assert got[:2] == (number, generation)
            memory = mmap.mmap(reply.fds[0], got[2])
            memory.madvise(mmap.MADV_DONTFORK)
            reply.close_fds()
            self.extents[number, generation] = memory
        return self.extents[number, generation]

    def read_segs(self, segs):
        out = b""
        for extent, generation, page, count in segs:
            memory = self.extent(extent, generation)
            out += memory[page * self.page:page * self.page + count]
        return out

    def write_segs(self, segs, data):
        at = 0
        for extent, generation, page, count in segs:
            memory = self.extent(extent, generation)
            piece = data[at:at + count]
            memory[page * self.page:page * self.page + len(piece)] = piece
            at += count

    def reserve(self, space, key, length, **row):
        reply = self.ring_ask(RESERVE, batch_body(
            space, [save_row(key, length, **row)]))
        assert reply.status == OK, reply.text
        return reply.result

    def commit(self, lease, crc, how=PLAIN):
        return self.ring_ask(COMMIT, ends_body([(lease, crc, how)])).result

    def lease(self, space, key):
        reply = self.ring_ask(LEASE, batch_body(space, [name_row(key)]))
        assert reply.status == OK, reply.text
        return reply.result

    def release(self, lease, how=PLAIN):
        return self.ring_ask(RELEASE, ends_body([(lease, 0, how)])).status

    def shm_put(self, space, key, value, **row):
        r = self.reserve(space, key, len(value), **row)
        if r.status == OK:
            self.write_segs(r.segs, value)
            r = self.commit(r.lease, crc32c(value))
        return r.status

    def shm_get(self, space, key):
        """(bytes, None) or (None, cause); as a client would: what does not
        match its checksum is reported and is a miss."""
        r = self.lease(space, key)
        if r.status != OK:
            return None, r.cause
        value = self.read_segs(r.segs)
        good = crc32c(value) == r.crc
        assert self.release(r.lease, CHECKED if good else PLAIN) == OK
        if good:
            return value, None
        again = self.ring_ask(REPORT, batch_body(space, [name_row(key)]))
        assert again.status == OK
        return None, "corrupt"

    # the end

    def forget(self):
        """Unmaps everything and says so."""
        for memory in self.extents.values():
            memory.close()
        self.extents = {}
        assert self.ask(REVOKED, extent_body(FOREVER, 0)).status == OK

    def close(self):
        """As a client does that leaves. A session with leases is for its
        process's end to clean up, or the caller's."""
        if self.extents:
            try:
                self.forget()
            except (Ended, OSError):
                pass
        self.drop()

    def drop(self):
        """Hangs up, without a word."""
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.sock.close()


class Ring:
    """The client's side of the shared rings."""
    TO_SERVER, TO_CLIENT = 0, 192  # tail, head, sleeps: 64 bytes apart

    def __init__(self, memory_fd, bell_fd):
        self.map = mmap.mmap(memory_fd, RING_MAP)
        self.map.madvise(mmap.MADV_DONTFORK)
        os.close(memory_fd)
        self.bell = bell_fd
        self.tail = self.head = 0

    def word(self, at):
        return ctypes.c_uint32.from_buffer(self.map, at).value

    def set_word(self, at, value):
        # One store: struct writes byte by byte, which the daemon could see.
        ctypes.c_uint32.from_buffer(self.map, at).value = value & 0xFFFFFFFF

    def ring_bell(self):
        os.write(self.bell, struct.pack("<Q", 1))

    def fits(self, count):
        used = self.tail - self.word(self.TO_SERVER + 64) & 0xFFFFFFFF
        return (4 + count + 7 & ~7) <= RING_BYTES - used

    def put_raw(self, data, length=None, bell=True):
        """A record; length: a lie about its bytes."""
        record = struct.pack("<I", len(data) if length is None else length)
        record += data
        record += bytes(-len(record) % 8)
        at = self.tail % RING_BYTES
        first = record[:RING_BYTES - at]
        base = RING_HEAD
        self.map[base + at:base + at + len(first)] = first
        rest = record[len(first):]
        self.map[base:base + len(rest)] = rest
        self.tail = self.tail + len(record) & 0xFFFFFFFF
        self.set_word(self.TO_SERVER, self.tail)
        if bell:
            self.ring_bell()

    def put(self, data):
        assert self.fits(len(data)), "the ring is full"
        self.put_raw(data)

    def take(self, end, sock):
        """The next message. It looks again and again: a test has the time,
        and needs no futex."""
        base = RING_HEAD + RING_BYTES
        watch = select.poll()
        watch.register(sock, select.POLLIN)
        while self.word(self.TO_CLIENT) == self.head:
            if time.monotonic() > end:
                raise TimeoutError("no reply in the ring")
            time.sleep(0.0003)
            if watch.poll(0) and not sock.recv(1, socket.MSG_PEEK):
                raise Ended("end of stream")
        at = self.head % RING_BYTES
        count = self.word(base + at)
        at = (at + 4) % RING_BYTES
        data = self.map[base + at:base + min(at + count, RING_BYTES)]
        data += self.map[base:base + count - len(data)]
        self.head = self.head + (4 + count + 7 & ~7) & 0xFFFFFFFF
        self.set_word(self.TO_CLIENT + 64, self.head)
        return data

    def close(self):
        self.map.close()
        os.close(self.bell)


def send_with_fd(sock, data, fd):
    """Bytes with a descriptor nobody asked for."""
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                           array.array("i", [fd]))])
