"""A server that takes Produce requests and is honest about its disk, or not: toy_server.py PORT DIRECTORY HABIT

It serves one connection and ends with it. The audit must find every habit but the honest ones.
"""

import os
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wire"))

import schema

PRODUCE_VERSION = 9
HABITS = {
    "honest": "writes, syncs file and directories, answers",
    "honest with O_DSYNC": "needs no sync of the file",
    "honest in pieces": "cuts the payload by headers of its own",
    "acks before sync": "",
    "never syncs": "",
    "syncs another file": "",
    "syncs before writing": "",
    "forgets the directory": "",
    "forgets the directory above": "",
    "writes half": "",
    "writes nothing": "",
    "writes to the wrong place": "",
    "renames after the sync": "",
}


def main():
    port, directory, habit = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    assert habit in HABITS
    log = Log(directory, habit)
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as requests:
        while size := requests.read(4):
            frame = requests.read(struct.unpack(">i", size)[0])
            _, header_size = schema.decode("RequestHeader", 2, frame)
            body, _ = schema.decode("ProduceRequest", PRODUCE_VERSION, frame[header_size:])
            records = body["TopicData"][0]["PartitionData"][0]["Records"]
            log.append(records, lambda frame=frame, body=body: connection.sendall(answer(frame, body)))


def answer(frame, body):
    name = body["TopicData"][0]["Name"]
    response = {"Responses": [{"Name": name, "PartitionResponses": [{"Index": 0, "ErrorCode": 0, "BaseOffset": 0}]}]}
    payload = frame[4:8] + b"\0" + schema.encode("ProduceResponse", PRODUCE_VERSION, response)
    return struct.pack(">i", len(payload)) + payload


class Log:
    def __init__(self, directory, habit):
        self.habit = habit
        place = directory / ("elsewhere" if habit == "writes to the wrong place" else "journal")
        place.mkdir()
        flags = os.O_CREAT | os.O_RDWR | (os.O_DSYNC if habit == "honest with O_DSYNC" else 0)
        self.path = place / "0001"
        self.file = os.open(self.path, flags)
        self.other = os.open(place / "other", flags)
        if habit != "forgets the directory":
            sync_directory(place)
        if habit != "forgets the directory above":
            sync_directory(directory)

    def append(self, records, reply):
        if self.habit == "syncs before writing":
            os.fdatasync(self.file)
        self.write(records)
        if self.habit == "acks before sync":
            reply()
            os.fdatasync(self.file)
            return
        if self.habit not in ("never syncs", "syncs before writing", "honest with O_DSYNC"):
            os.fdatasync(self.other if self.habit == "syncs another file" else self.file)
        if self.habit == "renames after the sync":
            renamed = self.path.with_name("0002")
            self.path.rename(renamed)
            self.path = renamed
        reply()

    def write(self, records):
        if self.habit == "writes half":
            os.write(self.file, records[: len(records) // 2])
        elif self.habit == "honest in pieces":
            for at in range(0, len(records), 1000):
                os.writev(self.file, [b"header", records[at : at + 1000]])
        elif self.habit != "writes nothing":
            os.write(self.file, records)


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


if __name__ == "__main__":
    main()
