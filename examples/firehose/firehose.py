#!/usr/bin/env python3
"""A firehose of posts that authors edit and delete: each author is a queue of one topic.

    firehose.py post alice 'hello'                 prints the position of the post
    firehose.py edit alice 2.0.0 'hello again'     replaces the text; the post keeps its position
    firehose.py delete alice 2.0.0
    firehose.py leave alice                        deletes all posts of alice
    firehose.py timeline alice                     prints the posts that there are
    firehose.py follow alice bob                   prints posts as they come, until Ctrl-C
    firehose.py demo                               plays a short scene
"""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class Refused(Exception):
    """The broker's answer to a request that it does not carry out: a problem document."""

    def __init__(self, problem):
        self.slug = problem["type"].rsplit("/", 1)[-1]
        super().__init__(f"{self.slug}: {problem['detail']}")


class Firehose:
    def __init__(self, server, topic):
        self.url = f"http://{server}/v1/topics/{urllib.parse.quote(topic, safe='')}"
        try:
            self.call("PUT", "", {"settings": {"queue.enable": "true"}})
        except Refused as refused:
            if refused.slug != "topic-exists":
                raise

    def call(self, method, path, body=None, headers=()):
        with self.open(method, path, body, headers) as answer:
            return json.load(answer)

    def open(self, method, path, body=None, headers=()):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **dict(headers)}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            # A stream has an event every 15 seconds, if only a heartbeat.
            return urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as refusal:
            raise Refused(json.load(refusal)) from None

    def queue(self, author):
        return f"/queues/{urllib.parse.quote(author, safe='')}"

    def post(self, author, text):
        """Appends a post to the author's queue, and returns its position."""
        return self.call("POST", f"{self.queue(author)}/messages", {"messages": [{"value": text}]})["first"]

    def read(self, author, position):
        return self.call("GET", f"{self.queue(author)}/messages/{position}")

    def edit(self, author, position, text, version):
        """Replaces the text of a post if it still has this version. Returns its new version."""
        path = f"{self.queue(author)}/messages/{position}"
        return self.call("PUT", path, {"value": text}, {"If-Match": f'"{version}"'})["version"]

    def delete(self, author, position):
        """Deletes a post: from the answer on nobody reads it, by any protocol. Returns whether there was one."""
        return self.call("DELETE", f"{self.queue(author)}/messages/{position}")["withdrawn"] > 0

    def leave(self, author):
        """Deletes all posts of an author, and returns their number."""
        return self.call("DELETE", self.queue(author))["withdrawn"]

    def timeline(self, author):
        """Reads the author's queue page by page, to its end."""
        after, more = "begin", True
        while more:
            page = self.call("GET", f"{self.queue(author)}/messages?after={after}&limit=100")
            yield from page["elements"]
            after, more = page["next"] or after, page["more"]

    def follow(self, authors):
        """Yields each event of the authors' queues: what they have, and then each post as it comes."""
        cursors = {author: "begin" for author in authors}
        while True:
            body = {"cursors": [{"queue": author, "after": after} for author, after in cursors.items()]}
            try:
                with self.open("POST", "/subscribe", body, {"Accept": "text/event-stream"}) as stream:
                    for kind, event in events(stream):
                        if kind == "problem":
                            raise Refused(event)
                        yield kind, event
                        # The next stream begins here: no post is missing, and none comes twice.
                        cursors[event["queue"]] = event["next"] or cursors[event["queue"]]
            except (OSError, http.client.HTTPException) as failure:
                print(f"the stream ended, and begins again: {failure}", file=sys.stderr)
                time.sleep(1)


def events(stream):
    """Splits a stream of server-sent events: pairs of lines `event: KIND` and `data: JSON`."""
    kind = None
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def line(author, post):
    edited = post["version"] != int(post["position"].split(".")[2])
    return f"{post['position']} {author}: {post['value']}{' (edited)' if edited else ''}"


def show_timeline(firehose, author):
    for post in firehose.timeline(author):
        print(line(author, post))


def follow(firehose, authors):
    waiting = set(authors)
    for kind, event in firehose.follow(authors):
        if kind == "element":
            print(line(event["queue"], event["element"]), flush=True)
        elif kind == "caught_up" and waiting:
            waiting.discard(event["queue"])
            if not waiting:
                print("-- these are all posts; more come as they are written", flush=True)


def demo(firehose):
    # What an earlier demo left.
    firehose.leave("alice")
    firehose.leave("bob")
    print("> alice and bob post")
    first = firehose.post("alice", "breakfast at eight")
    firehose.post("bob", "good morning")
    second = firehose.post("alice", "my password is hunter2")
    show_timeline(firehose, "alice")
    print("> alice corrects her first post")
    version = firehose.read("alice", first)["version"]
    firehose.edit("alice", first, "breakfast at nine", version)
    show_timeline(firehose, "alice")
    print("> her other client edits the text that it has seen: that text is not there any more")
    try:
        firehose.edit("alice", first, "BREAKFAST AT EIGHT", version)
    except Refused as refused:
        print(f"refused: {refused}")
    print("> alice deletes her second post, and tries to edit it afterwards")
    firehose.delete("alice", second)
    show_timeline(firehose, "alice")
    try:
        firehose.edit("alice", second, "never mind", version)
    except Refused as refused:
        print(f"refused: {refused}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:9080", help="address of the native API [%(default)s]")
    parser.add_argument("--topic", default="posts", help="[%(default)s]")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("post", "edit", "delete", "leave", "timeline", "follow", "demo"):
        command = commands.add_parser(name)
        if name != "demo":
            command.add_argument("author", nargs="+" if name == "follow" else None)
        if name in ("edit", "delete"):
            command.add_argument("position")
        if name in ("post", "edit"):
            command.add_argument("text")
        if name == "edit":
            command.add_argument("--version", type=int, help="version that the post must have [the present one]")
    told = parser.parse_args()
    try:
        firehose = Firehose(told.server, told.topic)
        match told.command:
            case "post":
                print(firehose.post(told.author, told.text))
            case "edit":
                seen = told.version
                if seen is None:
                    seen = firehose.read(told.author, told.position)["version"]
                print(f"version {firehose.edit(told.author, told.position, told.text, seen)}")
            case "delete":
                print("deleted" if firehose.delete(told.author, told.position) else "there is no such post")
            case "leave":
                print(f"{firehose.leave(told.author)} posts deleted")
            case "timeline":
                show_timeline(firehose, told.author)
            case "follow":
                follow(firehose, told.author)
            case "demo":
                demo(firehose)
    except Refused as refused:
        sys.exit(f"refused: {refused}")
    except (OSError, http.client.HTTPException) as failure:
        sys.exit(f"no answer from {told.server}: {failure}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
