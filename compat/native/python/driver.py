"""Carries out the steps that it reads, one a line, with the client that is generated for Python; see ../README.md."""

import json
import sys

import grpc
import reach
from duramen.v1 import duramen_pb2, duramen_pb2_grpc
from google.protobuf import json_format
from google.protobuf.empty_pb2 import Empty
from google.rpc import error_details_pb2
from grpc_status import rpc_status

OPTIONS = [("grpc.max_receive_message_length", 33 << 20), ("grpc.enable_retries", 0)]
STREAMS = ("Read", "EnqueueStream", "Subscribe")
STUBS = {name: getattr(duramen_pb2_grpc, f"{name}Stub") for name in ("Leases", "Logs", "Queues", "Topics")}


def call(channel, step, answers):
    service, method = step["method"].split(".")
    if service == "Nothing":
        serialize = Empty.SerializeToString
        channel.unary_unary("/duramen.v1.Nothing/Do", serialize, Empty.FromString)(Empty(), timeout=step["deadline_s"])
        return
    stub = getattr(STUBS[service](channel), method)
    kind = getattr(duramen_pb2, f"{method}Request")
    if method == "EnqueueStream":
        request = (json_format.ParseDict(each, kind()) for each in step["request"]["requests"])
    else:
        request = json_format.ParseDict(step["request"], kind())
    answer = stub(request, timeout=step["deadline_s"])
    for each in answer if method in STREAMS else [answer]:
        event = json_format.MessageToDict(each)
        if "heartbeat" in event:
            continue
        answers.append(event)
        if len(answers) == step["take"]:
            answer.cancel()
            break


def problem(error):
    told = {"slug": "", "code": error.code().value[0], "detail": error.details(), "metadata": {}}
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == "duramen":
            told |= {"slug": info.reason, "metadata": dict(info.metadata)}
    return told


def connect(address):
    if not reach.USER:
        return grpc.insecure_channel(address, OPTIONS)
    with open(reach.CA, "rb") as authority:
        trust = grpc.ssl_channel_credentials(authority.read())
    user = grpc.metadata_call_credentials(lambda _, say: say((("authorization", reach.basic()),), None))
    return grpc.secure_channel(address, grpc.composite_channel_credentials(trust, user), OPTIONS)


def main():
    channels = {}
    for line in sys.stdin:
        step = json.loads(line)
        if step["address"] not in channels:
            channels[step["address"]] = connect(step["address"])
        told = {"answers": []}
        try:
            call(channels[step["address"]], step, told["answers"])
        except grpc.RpcError as error:
            told["problem"] = problem(error)
        print(json.dumps(told), flush=True)


main()
