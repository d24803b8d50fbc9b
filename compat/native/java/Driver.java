import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Any;
import com.google.protobuf.Empty;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.ErrorInfo;
import dev.duramen.v1.AppendRequest;
import dev.duramen.v1.CreateTopicRequest;
import dev.duramen.v1.DeleteQueueRequest;
import dev.duramen.v1.DeleteRequest;
import dev.duramen.v1.DeleteTopicRequest;
import dev.duramen.v1.EnqueueManyRequest;
import dev.duramen.v1.EnqueueRequest;
import dev.duramen.v1.EnqueueStreamRequest;
import dev.duramen.v1.EnqueueStreamResponse;
import dev.duramen.v1.FenceQueueRequest;
import dev.duramen.v1.FenceRequest;
import dev.duramen.v1.GetElementRequest;
import dev.duramen.v1.GetQueueRequest;
import dev.duramen.v1.GetTopicRequest;
import dev.duramen.v1.LeaseRequest;
import dev.duramen.v1.LeasesGrpc;
import dev.duramen.v1.ListQueuesRequest;
import dev.duramen.v1.ListTopicsRequest;
import dev.duramen.v1.LogsGrpc;
import dev.duramen.v1.OpenSessionRequest;
import dev.duramen.v1.QueuesGrpc;
import dev.duramen.v1.ReadRequest;
import dev.duramen.v1.RedriveRequest;
import dev.duramen.v1.ReplaceRequest;
import dev.duramen.v1.RetrieveRequest;
import dev.duramen.v1.RewriteRequest;
import dev.duramen.v1.SettleRequest;
import dev.duramen.v1.SubscribeRequest;
import dev.duramen.v1.SubscribeResponse;
import dev.duramen.v1.TailRequest;
import dev.duramen.v1.TopicsGrpc;
import dev.duramen.v1.TrimQueueRequest;
import dev.duramen.v1.TruncateRequest;
import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Carries out the steps that it reads, one a line, with the client that is generated for Java; see ../README.md. */
final class Driver {
    private static final int MESSAGE_BYTES_MAX = 33 << 20;

    public static void main(String[] arguments) throws Exception {
        Map<String, ManagedChannel> channels = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject step = JsonParser.parseString(line).getAsJsonObject();
            ManagedChannel channel = channels.computeIfAbsent(step.get("address").getAsString(), Driver::channel);
            JsonObject told = new JsonObject();
            JsonArray answers = new JsonArray();
            told.add("answers", answers);
            try {
                Iterator<? extends Message> answered = call(channel, step);
                while (answered.hasNext()) {
                    answers.add(JsonParser.parseString(JsonFormat.printer().print(answered.next())));
                }
            } catch (StatusRuntimeException error) {
                told.add("problem", problem(error));
            }
            System.out.println(told);
        }
        channels.values().forEach(ManagedChannel::shutdownNow);
    }

    /** Nobody's without TLS, or that of the user that the environment names. */
    private static ManagedChannel channel(String address) {
        String user = System.getenv("SASL_USERNAME");
        if (user == null) {
            return ManagedChannelBuilder.forTarget(address).usePlaintext().maxInboundMessageSize(MESSAGE_BYTES_MAX).build();
        }
        byte[] login = (user + ":" + System.getenv("SASL_PASSWORD")).getBytes(StandardCharsets.UTF_8);
        Metadata said = new Metadata();
        said.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Basic " + Base64.getEncoder().encodeToString(login));
        try {
            var trust = TlsChannelCredentials.newBuilder().trustManager(new File(System.getenv("SSL_CA"))).build();
            return Grpc.newChannelBuilder(address, trust)
                    .intercept(MetadataUtils.newAttachHeadersInterceptor(said))
                    .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                    .build();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Iterator<? extends Message> call(ManagedChannel channel, JsonObject step) throws Exception {
        long deadline = step.get("deadline_s").getAsLong();
        String request = step.get("request").toString();
        LeasesGrpc.LeasesBlockingStub leases = LeasesGrpc.newBlockingStub(channel).withDeadlineAfter(deadline, TimeUnit.SECONDS);
        LogsGrpc.LogsBlockingStub logs = LogsGrpc.newBlockingStub(channel).withDeadlineAfter(deadline, TimeUnit.SECONDS);
        QueuesGrpc.QueuesBlockingStub queues = QueuesGrpc.newBlockingStub(channel).withDeadlineAfter(deadline, TimeUnit.SECONDS);
        TopicsGrpc.TopicsBlockingStub topics = TopicsGrpc.newBlockingStub(channel).withDeadlineAfter(deadline, TimeUnit.SECONDS);
        String method = step.get("method").getAsString();
        switch (method) {
            case "Logs.Read":
                return logs.read(read(request, ReadRequest.newBuilder()).build());
            case "Queues.Subscribe":
                return subscribe(queues, read(request, SubscribeRequest.newBuilder()).build(), step.get("take").getAsInt());
            case "Queues.EnqueueStream":
                List<EnqueueStreamRequest> requests = new ArrayList<>();
                for (var each : step.getAsJsonObject("request").getAsJsonArray("requests")) {
                    requests.add(read(each.toString(), EnqueueStreamRequest.newBuilder()).build());
                }
                return enqueueStream(channel, deadline, requests);
            default:
        }
        Message answer = switch (method) {
            case "Leases.Lease" -> leases.lease(read(request, LeaseRequest.newBuilder()).build());
            case "Leases.Settle" -> leases.settle(read(request, SettleRequest.newBuilder()).build());
            case "Leases.Redrive" -> leases.redrive(read(request, RedriveRequest.newBuilder()).build());
            case "Logs.Append" -> logs.append(read(request, AppendRequest.newBuilder()).build());
            case "Logs.Tail" -> logs.tail(read(request, TailRequest.newBuilder()).build());
            case "Logs.Truncate" -> logs.truncate(read(request, TruncateRequest.newBuilder()).build());
            case "Logs.Fence" -> logs.fence(read(request, FenceRequest.newBuilder()).build());
            case "Logs.OpenSession" -> logs.openSession(read(request, OpenSessionRequest.newBuilder()).build());
            case "Queues.Enqueue" -> queues.enqueue(read(request, EnqueueRequest.newBuilder()).build());
            case "Queues.EnqueueMany" -> queues.enqueueMany(read(request, EnqueueManyRequest.newBuilder()).build());
            case "Queues.Retrieve" -> queues.retrieve(read(request, RetrieveRequest.newBuilder()).build());
            case "Queues.GetElement" -> queues.getElement(read(request, GetElementRequest.newBuilder()).build());
            case "Queues.Delete" -> queues.delete(read(request, DeleteRequest.newBuilder()).build());
            case "Queues.Replace" -> queues.replace(read(request, ReplaceRequest.newBuilder()).build());
            case "Queues.Rewrite" -> queues.rewrite(read(request, RewriteRequest.newBuilder()).build());
            case "Queues.DeleteQueue" -> queues.deleteQueue(read(request, DeleteQueueRequest.newBuilder()).build());
            case "Queues.TrimQueue" -> queues.trimQueue(read(request, TrimQueueRequest.newBuilder()).build());
            case "Queues.FenceQueue" -> queues.fenceQueue(read(request, FenceQueueRequest.newBuilder()).build());
            case "Queues.GetQueue" -> queues.getQueue(read(request, GetQueueRequest.newBuilder()).build());
            case "Queues.ListQueues" -> queues.listQueues(read(request, ListQueuesRequest.newBuilder()).build());
            case "Topics.CreateTopic" -> topics.createTopic(read(request, CreateTopicRequest.newBuilder()).build());
            case "Topics.GetTopic" -> topics.getTopic(read(request, GetTopicRequest.newBuilder()).build());
            case "Topics.ListTopics" -> topics.listTopics(read(request, ListTopicsRequest.newBuilder()).build());
            case "Topics.DeleteTopic" -> topics.deleteTopic(read(request, DeleteTopicRequest.newBuilder()).build());
            default -> missing(channel);
        };
        return List.of(answer).iterator();
    }

    /** Ends with as many events as are wanted. */
    private static Iterator<SubscribeResponse> subscribe(QueuesGrpc.QueuesBlockingStub queues, SubscribeRequest request, int take) throws Exception {
        Context.CancellableContext context = Context.current().withCancellation();
        try {
            return context.call(() -> {
                List<SubscribeResponse> events = new ArrayList<>();
                Iterator<SubscribeResponse> all = queues.subscribe(request);
                while ((take == 0 || events.size() < take) && all.hasNext()) {
                    SubscribeResponse event = all.next();
                    if (!event.hasHeartbeat()) {
                        events.add(event);
                    }
                }
                return events.iterator();
            });
        } finally {
            context.cancel(null);
        }
    }

    private static Iterator<EnqueueStreamResponse> enqueueStream(ManagedChannel channel, long deadline, List<EnqueueStreamRequest> requests) throws Exception {
        List<EnqueueStreamResponse> answers = new ArrayList<>();
        CompletableFuture<Throwable> end = new CompletableFuture<>();
        StreamObserver<EnqueueStreamRequest> stream = QueuesGrpc.newStub(channel)
                .withDeadlineAfter(deadline, TimeUnit.SECONDS)
                .enqueueStream(new StreamObserver<EnqueueStreamResponse>() {
                    @Override
                    public void onNext(EnqueueStreamResponse answer) {
                        answers.add(answer);
                    }

                    @Override
                    public void onError(Throwable error) {
                        end.complete(error);
                    }

                    @Override
                    public void onCompleted() {
                        end.complete(null);
                    }
                });
        requests.forEach(stream::onNext);
        stream.onCompleted();
        Throwable error = end.get();
        if (error != null) {
            throw Status.fromThrowable(error).asRuntimeException(Status.trailersFromThrowable(error));
        }
        return answers.iterator();
    }

    private static <B extends Message.Builder> B read(String text, B builder) throws Exception {
        JsonFormat.parser().merge(text, builder);
        return builder;
    }

    /** Calls a method that there is not. */
    private static Message missing(ManagedChannel channel) {
        MethodDescriptor<Empty, Empty> method = MethodDescriptor.<Empty, Empty>newBuilder()
                .setType(MethodDescriptor.MethodType.UNARY)
                .setFullMethodName("duramen.v1.Nothing/Do")
                .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
                .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
                .build();
        return ClientCalls.blockingUnaryCall(channel, method, CallOptions.DEFAULT, Empty.getDefaultInstance());
    }

    private static JsonObject problem(StatusRuntimeException error) throws Exception {
        JsonObject told = new JsonObject();
        JsonObject metadata = new JsonObject();
        told.addProperty("slug", "");
        told.addProperty("code", error.getStatus().getCode().value());
        told.addProperty("detail", String.valueOf(error.getStatus().getDescription()));
        told.add("metadata", metadata);
        com.google.rpc.Status status = StatusProto.fromThrowable(error);
        for (Any detail : status.getDetailsList()) {
            if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals("duramen")) {
                ErrorInfo info = detail.unpack(ErrorInfo.class);
                told.addProperty("slug", info.getReason());
                info.getMetadataMap().forEach(metadata::addProperty);
            }
        }
        return told;
    }
}
