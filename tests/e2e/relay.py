"""A relay between hosts, for links that are slow or stall: this kernel has no
netem. Run as a program, in the namespace that all links end in.

    relay.py NAME=LISTEN_HOST:PORT=TO_HOST:PORT ...

Lines on its standard input: `delay NAME MS` (0: none), `rate NAME BYTES` (a
second, 0: no bound), `most NAME BYTES` (of a connection in each direction, then
it stalls; 0: no bound), `stall NAME`, `go NAME`. NAME is whom the connections
go to. Bytes keep their order; of each direction at most 4 MiB wait here, then
the sender has to.
"""
import asyncio
import sys
import time

PIECE = 1 << 17
WAITING = 4 << 20


class Link:
    def __init__(self):
        self.delay_s = 0.0
        self.rate = 0.0
        self.most = 0
        self.going = asyncio.Event()
        self.going.set()


async def _take(reader, queue, link, room):
    while True:
        data = await reader.read(PIECE)
        await room.wait()
        queue.put_nowait((time.monotonic() + link.delay_s, data))
        if sum(len(d) for _, d in queue._queue) >= WAITING:
            room.clear()
        if not data:
            return


async def _give(writer, queue, link, room):
    given = 0
    while True:
        due, data = await queue.get()
        room.set()
        await link.going.wait()
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        await link.going.wait()
        if not data:
            writer.close()
            return
        given += len(data)
        if 0 < link.most < given:
            await asyncio.Event().wait()
        writer.write(data)
        await writer.drain()
        if link.rate > 0:
            await asyncio.sleep(len(data) / link.rate)


async def _carry(reader, writer, link):
    queue, room = asyncio.Queue(), asyncio.Event()
    room.set()
    tasks = [asyncio.ensure_future(_take(reader, queue, link, room)),
             asyncio.ensure_future(_give(writer, queue, link, room))]
    try:
        await asyncio.gather(*tasks)
    except OSError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        writer.close()


def _accept(link, host, port):
    async def accepted(reader, writer):
        try:
            await link.going.wait()
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_carry(reader, far_writer, link),
                             _carry(far_reader, writer, link))
    return accepted


async def _listen(spec, links):
    name, at, to = spec.split("=")
    links[name] = Link()
    host, port = to.split(":")
    here, here_port = at.split(":")
    await asyncio.start_server(_accept(links[name], host, int(port)),
                               here, int(here_port))


def _order(line, links):
    words = line.split()
    link = links[words[1]]
    if words[0] == "delay":
        link.delay_s = float(words[2]) / 1000
    elif words[0] == "rate":
        link.rate = float(words[2])
    elif words[0] == "most":
        link.most = int(words[2])
    elif words[0] == "stall":
        link.going.clear()
    elif words[0] == "go":
        link.going.set()
    print("done", flush=True)


async def main():
    links = {}
    for spec in sys.argv[1:]:
        await _listen(spec, links)
    print("ready", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_event_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while True:
        line = await lines.readline()
        if not line:
            return
        _order(line.decode(), links)


if __name__ == "__main__":
    asyncio.run(main())
