"""Carries out the steps that it reads, one a line, by grpcurl and the server's reflection; see README.md.  GRPCURL"""

import base64
import json
import subprocess
import sys

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


def main():
    for line in sys.stdin:
        step = json.loads(line)
        options = ["-plaintext", "-format-error", "-max-time", str(step["deadline_s"]), "-max-msg-sz", str(33 << 20), "-d", "@"]
        command = [sys.argv[1], *options, step["address"], f"duramen.v1.{step['method'].replace('.', '/')}"]
        done = subprocess.run(command, input=json.dumps(step["request"]), capture_output=True, text=True)
        told = {"answers": list(objects(done.stdout))}
        if done.returncode != 0:
            try:
                told["problem"] = problem(next(objects(done.stderr)))
            except (ValueError, StopIteration):
                told["problem"] = {"slug": "", "code": None, "detail": done.stderr, "metadata": {}}
        print(json.dumps(told), flush=True)


main()
