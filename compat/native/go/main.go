// Carries out the steps that it reads, one a line, with the client that is generated for Go; see ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"duramen/compat/native/gen/duramenv1"
)

type step struct {
	Address   string
	Method    string
	Request   json.RawMessage
	Take      int
	DeadlineS int `json:"deadline_s"`
}

type problem struct {
	Slug     string            `json:"slug"`
	Code     int               `json:"code"`
	Detail   string            `json:"detail"`
	Metadata map[string]string `json:"metadata"`
}

type told struct {
	Answers []json.RawMessage `json:"answers"`
	Problem *problem          `json:"problem,omitempty"`
}

type call func(context.Context, grpc.ClientConnInterface, *step, *told) error

// Makes a call of a method that has one answer.
func unary[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](method func(grpc.ClientConnInterface, context.Context, P, ...grpc.CallOption) (A, error)) call {
	return func(ctx context.Context, conn grpc.ClientConnInterface, step *step, told *told) error {
		request := P(new(Q))
		parse(step.Request, request)
		answer, err := method(conn, ctx, request)
		if err == nil {
			told.add(answer)
		}
		return err
	}
}

func (told *told) add(answer proto.Message) {
	text, err := protojson.Marshal(answer)
	if err != nil {
		panic(err)
	}
	told.Answers = append(told.Answers, text)
}

func parse(text []byte, message proto.Message) {
	if err := protojson.Unmarshal(text, message); err != nil {
		panic(err)
	}
}

func read(ctx context.Context, conn grpc.ClientConnInterface, step *step, told *told) error {
	request := &duramenv1.ReadRequest{}
	parse(step.Request, request)
	pages, err := duramenv1.NewLogsClient(conn).Read(ctx, request)
	for err == nil {
		var page *duramenv1.ReadResponse
		if page, err = pages.Recv(); err == nil {
			told.add(page)
		}
	}
	return ended(err)
}

// Ends with as many events as are wanted.
func subscribe(ctx context.Context, conn grpc.ClientConnInterface, step *step, told *told) error {
	request := &duramenv1.SubscribeRequest{}
	parse(step.Request, request)
	events, err := duramenv1.NewQueuesClient(conn).Subscribe(ctx, request)
	for err == nil {
		var event *duramenv1.SubscribeResponse
		if event, err = events.Recv(); err == nil && event.GetHeartbeat() == nil {
			told.add(event)
		}
		if step.Take > 0 && len(told.Answers) == step.Take {
			return nil
		}
	}
	return ended(err)
}

func enqueueStream(ctx context.Context, conn grpc.ClientConnInterface, step *step, told *told) error {
	var all struct{ Requests []json.RawMessage }
	if err := json.Unmarshal(step.Request, &all); err != nil {
		panic(err)
	}
	stream, err := duramenv1.NewQueuesClient(conn).EnqueueStream(ctx)
	for _, text := range all.Requests {
		request := &duramenv1.EnqueueStreamRequest{}
		parse(text, request)
		if err == nil {
			err = stream.Send(request)
		}
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		var answer *duramenv1.EnqueueStreamResponse
		if answer, err = stream.Recv(); err == nil {
			told.add(answer)
		}
	}
	return ended(err)
}

func ended(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// Calls a method that there is not.
func missing(ctx context.Context, conn grpc.ClientConnInterface, _ *step, _ *told) error {
	return conn.Invoke(ctx, "/duramen.v1.Nothing/Do", &emptypb.Empty{}, &emptypb.Empty{})
}

func leases[Q, A any](method func(duramenv1.LeasesClient, context.Context, Q, ...grpc.CallOption) (A, error)) func(grpc.ClientConnInterface, context.Context, Q, ...grpc.CallOption) (A, error) {
	return func(conn grpc.ClientConnInterface, ctx context.Context, request Q, options ...grpc.CallOption) (A, error) {
		return method(duramenv1.NewLeasesClient(conn), ctx, request, options...)
	}
}

func logs[Q, A any](method func(duramenv1.LogsClient, context.Context, Q, ...grpc.CallOption) (A, error)) func(grpc.ClientConnInterface, context.Context, Q, ...grpc.CallOption) (A, error) {
	return func(conn grpc.ClientConnInterface, ctx context.Context, request Q, options ...grpc.CallOption) (A, error) {
		return method(duramenv1.NewLogsClient(conn), ctx, request, options...)
	}
}

func queues[Q, A any](method func(duramenv1.QueuesClient, context.Context, Q, ...grpc.CallOption) (A, error)) func(grpc.ClientConnInterface, context.Context, Q, ...grpc.CallOption) (A, error) {
	return func(conn grpc.ClientConnInterface, ctx context.Context, request Q, options ...grpc.CallOption) (A, error) {
		return method(duramenv1.NewQueuesClient(conn), ctx, request, options...)
	}
}

func topics[Q, A any](method func(duramenv1.TopicsClient, context.Context, Q, ...grpc.CallOption) (A, error)) func(grpc.ClientConnInterface, context.Context, Q, ...grpc.CallOption) (A, error) {
	return func(conn grpc.ClientConnInterface, ctx context.Context, request Q, options ...grpc.CallOption) (A, error) {
		return method(duramenv1.NewTopicsClient(conn), ctx, request, options...)
	}
}

var calls = map[string]call{
	"Leases.Lease":         unary(leases(duramenv1.LeasesClient.Lease)),
	"Leases.Settle":        unary(leases(duramenv1.LeasesClient.Settle)),
	"Leases.Redrive":       unary(leases(duramenv1.LeasesClient.Redrive)),
	"Logs.Append":          unary(logs(duramenv1.LogsClient.Append)),
	"Logs.Read":            read,
	"Logs.Tail":            unary(logs(duramenv1.LogsClient.Tail)),
	"Logs.Truncate":        unary(logs(duramenv1.LogsClient.Truncate)),
	"Logs.Fence":           unary(logs(duramenv1.LogsClient.Fence)),
	"Logs.OpenSession":     unary(logs(duramenv1.LogsClient.OpenSession)),
	"Queues.Enqueue":       unary(queues(duramenv1.QueuesClient.Enqueue)),
	"Queues.EnqueueStream": enqueueStream,
	"Queues.Subscribe":     subscribe,
	"Queues.EnqueueMany":   unary(queues(duramenv1.QueuesClient.EnqueueMany)),
	"Queues.Retrieve":      unary(queues(duramenv1.QueuesClient.Retrieve)),
	"Queues.GetElement":    unary(queues(duramenv1.QueuesClient.GetElement)),
	"Queues.Delete":        unary(queues(duramenv1.QueuesClient.Delete)),
	"Queues.Replace":       unary(queues(duramenv1.QueuesClient.Replace)),
	"Queues.Rewrite":       unary(queues(duramenv1.QueuesClient.Rewrite)),
	"Queues.DeleteQueue":   unary(queues(duramenv1.QueuesClient.DeleteQueue)),
	"Queues.TrimQueue":     unary(queues(duramenv1.QueuesClient.TrimQueue)),
	"Queues.FenceQueue":    unary(queues(duramenv1.QueuesClient.FenceQueue)),
	"Queues.GetQueue":      unary(queues(duramenv1.QueuesClient.GetQueue)),
	"Queues.ListQueues":    unary(queues(duramenv1.QueuesClient.ListQueues)),
	"Topics.CreateTopic":   unary(topics(duramenv1.TopicsClient.CreateTopic)),
	"Topics.GetTopic":      unary(topics(duramenv1.TopicsClient.GetTopic)),
	"Topics.ListTopics":    unary(topics(duramenv1.TopicsClient.ListTopics)),
	"Topics.DeleteTopic":   unary(topics(duramenv1.TopicsClient.DeleteTopic)),
	"Nothing.Do":           missing,
}

func problemOf(err error) *problem {
	status, _ := status.FromError(err)
	it := &problem{Code: int(status.Code()), Detail: status.Message()}
	for _, detail := range status.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "duramen" {
			it.Slug, it.Metadata = info.Reason, info.Metadata
		}
	}
	return it
}

// user says who a call's client is.
type user string

func (it user) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": string(it)}, nil
}

func (user) RequireTransportSecurity() bool { return true }

// entry is that of nobody without TLS, or of the user that the environment names.
func entry() []grpc.DialOption {
	name := os.Getenv("SASL_USERNAME")
	if name == "" {
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	trust, err := credentials.NewClientTLSFromFile(os.Getenv("SSL_CA"), "")
	if err != nil {
		panic(err)
	}
	said := base64.StdEncoding.EncodeToString([]byte(name + ":" + os.Getenv("SASL_PASSWORD")))
	return []grpc.DialOption{grpc.WithTransportCredentials(trust), grpc.WithPerRPCCredentials(user("Basic " + said))}
}

func main() {
	conns := map[string]*grpc.ClientConn{}
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var step step
		if err := json.Unmarshal(line, &step); err != nil {
			panic(err)
		}
		conn := conns[step.Address]
		if conn == nil {
			conn, err = grpc.NewClient(step.Address, append(entry(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(33<<20)))...)
			if err != nil {
				panic(err)
			}
			conns[step.Address] = conn
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(step.DeadlineS)*time.Second)
		told := told{Answers: []json.RawMessage{}}
		call, ok := calls[step.Method]
		if !ok {
			panic(fmt.Sprint("no method ", step.Method, codes.Unimplemented))
		}
		if err := call(ctx, conn, &step, &told); err != nil {
			told.Problem = problemOf(err)
		}
		cancel()
		out.Encode(told)
	}
}
