"""Carries out the steps that it reads, one a line, by grpcurl and the server's reflection; see README.md.  GRPCURL"""

import base64
import json
import subprocess
import sys

import reach
from google.rpc import error_details_pb2


def objects(text):
    """Yields the values of a text that has one after the other."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:].lstrip()


def problem(status):
    told = {"slug": "", "code": status.get("code"), "detail": status.get("message", ""), "metadata": {}}
    for detail in status.get("details", ()):
        # As JSON if it knows the kind, which reflection need not tell.
        if detail["@type"].endswith("google.rpc.ErrorInfo"):
            info = detail
            if "@value" in detail or isinstance(detail.get("value"), str):
                message = error_details_pb2.ErrorInfo.FromString(base64.b64decode(detail.get("@value") or detail["value"]))
                info = {"reason": message.reason, "metadata": dict(message.metadata)}
            told |= {"slug": info["reason"], "metadata": info.get("metadata", {})}
    return told


def first(process, take):
    """Reads as many events as are wanted, or all, and ends the process."""
    text, found = "", []
    while len(found) < take and (line := process.stdout.readline()):
        text += line
        # Each value ends with a line of its own.
        if line.startswith("}"):
            found += [event for event in objects(text) if "heartbeat" not in event]
            text = ""
    if len(found) == take:
        process.terminate()
    return found


def main():
    for line in sys.stdin:
        step = json.loads(line)
        secure = ["-cacert", reach.CA, "-H", f"authorization: {reach.basic()}"] if reach.USER else ["-plaintext"]
        options = [*secure, "-format-error", "-max-time", str(step["deadline_s"]), "-max-msg-sz", str(33 << 20), "-d", "@"]
        command = [sys.argv[1], *options, step["address"], f"duramen.v1.{step['method'].replace('.', '/')}"]
        request = step["request"]
        text = "\n".join(map(json.dumps, request["requests"] if step["method"] == "Queues.EnqueueStream" else [request]))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if step["take"]:
                process.stdin.write(text)
                process.stdin.close()
                told = {"answers": first(process, step["take"])}
                failure, has_failed = process.stderr.read(), len(told["answers"]) < step["take"]
            else:
                answers, failure = process.communicate(text)
                told, has_failed = {"answers": list(objects(answers))}, process.returncode != 0
        if has_failed:
            try:
                told["problem"] = problem(next(objects(failure)))
            except (ValueError, StopIteration):
                told["problem"] = {"slug": "", "code": None, "detail": failure, "metadata": {}}
        print(json.dumps(told), flush=True)


main()
