package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// Duramen's native API. The few messages that a worker needs are put together here by the numbers of their fields, which the
// protocol never changes, so that nothing has to be generated. See crates/duramen/proto/duramen/v1/duramen.proto.

const (
	workGroup = "workers"
	// Connections of HTTP/1.1 over which messages go in.
	httpWriters = 64
)

// caller makes one call with a message, and returns the answer's.
type caller func(ctx context.Context, method, path string, request []byte) ([]byte, error)

type duramenWork struct {
	o      *options
	writes caller
	closes []func() error
}

type duramenWorker struct {
	p      *duramenWork
	call   caller
	number int
}

func newDuramenWork() workPeer { return &duramenWork{} }

// wire takes messages as they are.
type wire struct{}

func (wire) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (wire) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = data
	return nil
}
func (wire) Name() string { return "proto" }

func (p *duramenWork) prepare(o *options) error {
	p.o = o
	var err error
	p.writes, err = p.connect(httpWriters)
	return err
}

// connect opens a connection, or, of HTTP/1.1, so many at most.
func (p *duramenWork) connect(most int) (caller, error) {
	server := p.o.servers[0]
	if p.o.via == "http" {
		transport := &http.Transport{MaxConnsPerHost: most, MaxIdleConnsPerHost: most, DisableCompression: true}
		p.closes = append(p.closes, func() error { transport.CloseIdleConnections(); return nil })
		client := &http.Client{Transport: transport}
		return func(ctx context.Context, _, path string, request []byte) ([]byte, error) {
			return post(ctx, client, "http://"+server+path, request)
		}, nil
	}
	connection, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	p.closes = append(p.closes, connection.Close)
	return func(ctx context.Context, method, _ string, request []byte) ([]byte, error) {
		var answer []byte
		err := connection.Invoke(ctx, method, &request, &answer, grpc.ForceCodec(wire{}))
		return answer, err
	}, nil
}

func post(ctx context.Context, client *http.Client, url string, request []byte) ([]byte, error) {
	posted, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	posted.Header.Set("Content-Type", "application/x-protobuf")
	posted.Header.Set("Accept", "application/x-protobuf")
	answer, err := client.Do(posted)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, answer.Status, text)
	}
	return text, err
}

// fill makes an EnqueueManyRequest.
func (p *duramenWork) fill(queues []string, values [][]byte) error {
	request := field(nil, 1, []byte(p.o.stream))
	for at, queue := range queues {
		request = field(request, 2, field(field(nil, 1, []byte(queue)), 2, record(values[at], time.Time{})))
	}
	answer, err := p.writes(
		context.Background(), "/duramen.v1.Queues/EnqueueMany", "/v1/topics/"+p.o.stream+"/messages", request,
	)
	if err != nil {
		return err
	}
	return each(answer, 1, func(result []byte) error {
		return each(result, 2, func(problem []byte) error { return fmt.Errorf("a message was not appended: %s", problem) })
	})
}

// send makes an EnqueueRequest.
func (p *duramenWork) send(queue string, value []byte, at time.Time) error {
	request := field(field(field(nil, 1, []byte(p.o.stream)), 2, []byte(queue)), 3, record(value, at))
	path := "/v1/topics/" + p.o.stream + "/queues/" + queue + "/messages"
	_, err := p.writes(context.Background(), "/duramen.v1.Queues/Enqueue", path, request)
	return err
}

// record is a Record, with a Schedule if it has a time.
func record(value []byte, at time.Time) []byte {
	text := field(nil, 2, value)
	if !at.IsZero() {
		text = field(text, 6, number(nil, 1, uint64(at.UnixMilli())))
	}
	return text
}

func (p *duramenWork) worker(number int) (worker, error) {
	call, err := p.connect(1)
	return &duramenWorker{p, call, number}, err
}

// who is what LeaseRequest and SettleRequest begin with.
func (w *duramenWorker) who() []byte {
	text := field(field(nil, 1, []byte(w.p.o.stream)), 2, []byte(workGroup))
	return field(text, 3, fmt.Appendf(nil, "worker-%d", w.number))
}

func (w *duramenWorker) path(call string) string {
	return "/v1/topics/" + w.p.o.stream + "/groups/" + workGroup + "/" + call
}

func (w *duramenWorker) lease(ctx context.Context, limit int, wait time.Duration) (names []string, values [][]byte, err error) {
	request := number(number(w.who(), 4, uint64(limit)), 6, uint64(wait.Milliseconds()))
	answer, err := w.call(ctx, "/duramen.v1.Leases/Lease", w.path("lease"), request)
	if err != nil {
		return nil, nil, err
	}
	err = each(answer, 1, func(leased []byte) error {
		found := each(leased, 1, func(name []byte) error { names = append(names, string(name)); return nil })
		// Leased has an element, which has a record, which has a value.
		return errors.Join(found, each(leased, 3, func(element []byte) error {
			return each(element, 2, func(record []byte) error {
				return each(record, 2, func(value []byte) error { values = append(values, value); return nil })
			})
		}))
	})
	if err == nil && len(names) != len(values) {
		err = fmt.Errorf("%d leases have %d values", len(names), len(values))
	}
	return names, values, err
}

func (w *duramenWorker) settle(ctx context.Context, names []string) error {
	request := w.who()
	for _, name := range names {
		request = field(request, 4, field(nil, 1, []byte(name)))
	}
	answer, err := w.call(ctx, "/duramen.v1.Leases/Settle", w.path("settle"), request)
	if err != nil {
		return err
	}
	return each(answer, 1, func(unsettled []byte) error { return fmt.Errorf("not settled: %q", unsettled) })
}

func (p *duramenWork) close() {
	for _, close := range p.closes {
		close()
	}
}

func field(text []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(text, number, protowire.BytesType), value)
}

func number(text []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(text, number, protowire.VarintType), value)
}

// each calls `take` with each value of a field whose values are messages, texts or bytes.
func each(message []byte, wanted protowire.Number, take func(value []byte) error) error {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		rest := message[length:]
		if number == wanted && kind == protowire.BytesType {
			value, length := protowire.ConsumeBytes(rest)
			if length < 0 {
				return protowire.ParseError(length)
			}
			if err := take(value); err != nil {
				return err
			}
		}
		length = protowire.ConsumeFieldValue(number, kind, rest)
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = rest[length:]
	}
	return nil
}
