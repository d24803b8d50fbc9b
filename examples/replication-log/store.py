#!/usr/bin/env python3
"""A replicated key-value store. One queue is its replication log: the primary writes it, and replicas apply it.

    store.py NAME              a shell on standard input, with these commands:

      set KEY VALUE, del KEY   write an operation to the log, then apply it; of the primary alone
      get KEY, dump            read what this node has applied
      sync                     apply what the log has; undo what a rewrite has withdrawn
      promote                  become the primary with what this node has applied: withdraw the rest of the log
      checkpoint               save the state as a file, and trim the log up to it; of the primary alone

    store.py NAME --follow     a replica that prints each operation as it applies or undoes it, until Ctrl-C

Each operation in the log names the position of the one before it. A node that reads another position than that of its
own last operation knows that its operations behind that position were withdrawn.
"""

import argparse
import hashlib
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from pathlib import Path


class Refused(Exception):
    """The broker's answer to a request that it does not carry out: a problem document."""

    def __init__(self, problem):
        self.slug = problem["type"].rsplit("/", 1)[-1]
        super().__init__(f"{self.slug}: {problem['detail']}")


class Log:
    """The queue. Every request may be sent again: it is a read, has a guard and an id, or finds nothing more to do."""

    # The server cannot do it now; or it is unknown whether it did.
    RETRIED = (429, 503, 504)

    def __init__(self, server, topic, queue):
        self.topic_path = f"http://{server}/v1/topics/{urllib.parse.quote(topic, safe='')}"
        self.path = f"{self.topic_path}/queues/{urllib.parse.quote(queue, safe='')}"
        try:
            self.call("PUT", self.topic_path, {"settings": {"queue.enable": "true"}})
        except Refused as refused:
            if refused.slug != "topic-exists":
                raise

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        while True:
            request = urllib.request.Request(path, data, {"Content-Type": "application/json"}, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                failure = Refused(json.load(refusal))
                if refusal.code not in self.RETRIED:
                    raise failure from None
            except (OSError, http.client.HTTPException) as broken:
                failure = broken
            print(f"{failure}; the same request again in a second", file=sys.stderr)
            time.sleep(1)

    def queue(self):
        """Returns the queue's fence and its pointer, among others."""
        return self.call("GET", self.path)

    def has(self, position):
        """Returns whether the log still has the operation at the position, neither withdrawn nor trimmed."""
        try:
            self.call("GET", f"{self.path}/messages/{position}")
            return True
        except Refused as refused:
            if refused.slug != "unknown-element":
                raise
            return False

    def read(self, after, wait="0s"):
        return self.call("GET", f"{self.path}/messages?after={after or 'begin'}&limit=1000&wait={wait}")

    def append(self, message, last, fence):
        """Appends an operation behind `last`, if that is the end of the queue, and if the fence is ours."""
        guarded = {"messages": [message], "guard": {"last": last, "fence": fence}}
        return self.call("POST", f"{self.path}/messages", guarded)["first"]

    def rewrite(self, after, message, fence, reason):
        """Withdraws all operations behind a position, and appends one in their place: both or neither."""
        keep = {"after": after} if after else {"none": True}
        body = {**keep, "messages": [message], "fence": fence, "reason": reason}
        return self.call("POST", f"{self.path}/rewrite", body)

    def fence(self, token, before):
        """Sets the fence if it is still `before`. From the answer on a primary with that one can write no more."""
        self.call("PUT", f"{self.path}/fence", {"token": token, "if_token": before})

    def trim(self, through, pointer, fence):
        """Has readers begin behind a position, and leaves a pointer to the state of the store there."""
        self.call("POST", f"{self.path}/trim", {"through": through, "pointer": pointer, "fence": fence})


class Store:
    def __init__(self, name, log, checkpoints, tell):
        self.name, self.log, self.checkpoints, self.tell = name, log, checkpoints, tell
        # Our fence while we are the primary.
        self.token = None
        self.state = {}
        # Position of the last operation that is in the state; None if there is none.
        self.position = None
        # What undoes each operation since the checkpoint: its position, and the position and value before it.
        self.applied = []
        self.restore()

    def restore(self):
        """Takes the state from the checkpoint that the log points to. Returns whether it is another one than ours."""
        pointer = self.log.queue()["pointer"]
        if pointer is None or pointer["position"] == self.position:
            return False
        content = Path(urllib.request.url2pathname(urllib.parse.urlparse(pointer["uri"]).path)).read_bytes()
        if hashlib.sha256(content).hexdigest() != pointer["sha256"]:
            raise ValueError(f"{pointer['uri']} is not what the log points to")
        self.state, self.position, self.applied = json.loads(content), pointer["position"], []
        self.tell("checkpoint", self.position)
        return True

    def apply(self, position, operation):
        """Applies one operation. Undoes first what was withdrawn: all behind the operation that this one follows."""
        while self.position != operation["after"]:
            if not self.applied:
                raise LookupError(f"{position} follows {operation['after']}, which this node never had")
            self.undo()
        key = operation.get("key")
        self.applied.append((position, self.position, key, self.state.get(key)))
        self.put(key, operation.get("value"))
        self.position = position
        self.tell("apply", position, describe(operation))

    def undo(self):
        position, self.position, key, value = self.applied.pop()
        self.put(key, value)
        self.tell("undo", position)

    def put(self, key, value):
        self.state.pop(key, None)
        if value is not None:
            self.state[key] = value

    def sync(self, wait="0s"):
        """Applies what the log has behind our position, to its end."""
        after, more = self.position, True
        while more:
            try:
                page = self.log.read(after, wait)
                for element in page["elements"]:
                    self.apply(element["position"], json.loads(element["value"]))
                # A page of withdrawn operations is empty, and says how far it is.
                after, more = page["next"] or after, page["more"]
            except (Refused, LookupError) as gone:
                # What is behind our position was trimmed. A read from the beginning does not say so: its first
                # operation does.
                if getattr(gone, "slug", "trimmed") != "trimmed" or not self.restore():
                    raise
                after = self.position

    def write(self, operation):
        """Appends to the log first: what is not there was never done."""
        if self.token is None:
            raise ValueError(f"{self.name} is a replica")
        message = self.message(operation)
        try:
            position = self.log.append(message, self.position, self.token)
        except Refused as refused:
            self.demote_if_fenced(refused)
            raise
        self.apply(position, message["json"])

    def message(self, operation):
        """An id lets the same request be sent again. `after` tells readers what the operation follows."""
        return {"id": uuid.uuid4().hex, "json": {**operation, "after": self.position}}

    def demote_if_fenced(self, refused):
        """Another node is the primary now. We are a replica, and the next `sync` undoes what it has withdrawn."""
        if refused.slug == "fenced":
            self.token = None

    def promote(self):
        """Becomes the primary. Returns how many operations were withdrawn, which this node never saw."""
        self.token = None
        before = self.log.queue()["fence"] or ""
        # A token is higher than the one before it, and nobody else's.
        token = f"{int(before.split('-')[0] or 0) + 1}-{self.name}-{uuid.uuid4().hex[:8]}"
        try:
            self.log.fence(token, before)
        except Refused:
            # If an answer was lost, it is our own token that refuses the second request.
            if self.log.queue()["fence"] != token:
                raise
        # From here on the old primary neither writes nor trims.
        self.sync_if_withdrawn()
        message = self.message({"primary": self.name})
        told = self.log.rewrite(self.position, message, token, f"{self.name} is promoted")
        self.token = token
        self.apply(told["at"], message["json"])
        return told["withdrawn"]

    def sync_if_withdrawn(self):
        """Reads the log if it does not have our last operation: another node has withdrawn or trimmed that.

        The broker does not check it: a rewrite takes any position.
        """
        pointer = self.log.queue()["pointer"]
        at_checkpoint = self.position == (pointer["position"] if pointer else None)
        if not at_checkpoint and not (self.position and self.log.has(self.position)):
            self.sync()

    def checkpoint(self):
        """Saves the state as a file, then trims the log. Until the trim nobody looks for the file."""
        if self.token is None:
            raise ValueError(f"{self.name} is a replica")
        content = json.dumps(self.state, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        path = self.checkpoints.resolve() / f"{digest[:16]}.json"
        # Under its name a file is always whole.
        unfinished = path.with_suffix(f".{uuid.uuid4().hex}")
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        try:
            pointer = {"uri": path.as_uri(), "position": self.position, "sha256": digest}
            self.log.trim(self.position, pointer, self.token)
        except Refused as refused:
            self.demote_if_fenced(refused)
            raise
        self.applied = []


def describe(operation):
    if "primary" in operation:
        return f"{operation['primary']} is the primary"
    return f"set {operation['key']} {operation['value']}" if "value" in operation else f"del {operation['key']}"


def obey(store, told, line):
    """Carries out a command of the shell, and returns the line to print."""
    match line.strip().split(maxsplit=2):
        case ["set", key, value]:
            store.write({"key": key, "value": value})
            return f"written at {store.position}"
        case ["del", key]:
            store.write({"key": key})
            return f"written at {store.position}"
        case ["get", key]:
            return store.state.get(key, "(none)")
        case ["dump"]:
            return json.dumps(store.state, sort_keys=True)
        case ["sync"]:
            told.clear()
            store.sync()
            return f"{told['undo']} operations undone, {told['apply']} applied; at {store.position}"
        case ["promote"]:
            withdrawn = store.promote()
            return f"{store.name} is the primary with fence {store.token}; {withdrawn} operations withdrawn"
        case ["checkpoint"]:
            store.checkpoint()
            return f"checkpoint at {store.position}"
        case _:
            return "commands: set KEY VALUE, del KEY, get KEY, dump, sync, promote, checkpoint"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of this node")
    parser.add_argument("--server", default="127.0.0.1:9080", help="address of the native API [%(default)s]")
    parser.add_argument("--topic", default="databases", help="[%(default)s]")
    parser.add_argument("--database", default="shop", help="name of the queue [%(default)s]")
    parser.add_argument("--checkpoints", type=Path, default="checkpoints", help="a directory [%(default)s]")
    parser.add_argument("--follow", action="store_true", help="print each operation as it is applied or undone")
    options = parser.parse_args()
    told = Counter()

    def tell(kind, *words):
        told[kind] += 1
        if options.follow:
            print(kind, *words, flush=True)

    try:
        log = Log(options.server, options.topic, options.database)
        store = Store(options.name, log, options.checkpoints, tell)
        while options.follow:
            store.sync(wait="30s")
        has = f"at {store.position}" if store.position else "and has nothing yet"
        print(f"{store.name} is a replica, {has}", flush=True)
        for line in sys.stdin:
            try:
                print(obey(store, told, line), flush=True)
            except Refused as refused:
                role = "the primary" if store.token else "a replica"
                print(f"refused: {refused}; {store.name} is {role}", flush=True)
            except (ValueError, LookupError, OSError) as wrong:
                print(f"refused: {wrong}", flush=True)
    except (Refused, ValueError, LookupError, OSError) as failure:
        sys.exit(f"{options.name}: {failure}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
