package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Longest wait for one answer while nothing happens to the servers, and in a takeover.
	natsWait, natsWaitTakeover = 60 * time.Second, time.Second
	// Longest wait of one pull, and how often the server says that it lives: the rarest that the client allows.
	natsPull, natsHeartbeat = 60 * time.Second, 29 * time.Second
	// More than all callers have under way.
	natsPending = 256 << 10
	// The code of an append whose guard does not hold.
	natsWrongLast = 10071
	// The largest atomic batch, which bench/peers.py sets for the server, too.
	natsAtomicMax = 10_000
)

type natsPeer struct {
	o           *options
	connections []*natsConnection
	waiting     context.Context
	stopWaiting context.CancelFunc
}

type natsConnection struct {
	p      *natsPeer
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	batch  atomic.Uint64
}

func newNats() peer { return &natsPeer{} }

func (p *natsPeer) prepare(o *options) error {
	p.o = o
	p.waiting, p.stopWaiting = context.WithCancel(context.Background())
	for range o.connections {
		nc, err := nats.Connect("nats://"+strings.Join(o.servers, ",nats://"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
		if err != nil {
			return err
		}
		c := &natsConnection{p: p, nc: nc}
		p.connections = append(p.connections, c)
		if c.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(natsPending)); err != nil {
			return err
		}
		if c.stream, err = p.make(c.js); err != nil {
			return err
		}
	}
	return nil
}

func (p *natsPeer) make(js jetstream.JetStream) (jetstream.Stream, error) {
	ctx, stop := context.WithTimeout(context.Background(), natsWait)
	defer stop()
	stream, err := js.Stream(ctx, p.o.stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	return js.CreateStream(ctx, jetstream.StreamConfig{
		Name: p.o.stream, Subjects: []string{p.o.stream + ".>"}, Storage: jetstream.FileStorage, Replicas: p.o.replicas,
		AllowDirect: p.o.direct, AllowAtomicPublish: p.o.atomic,
	})
}

func (p *natsPeer) subject(queue string) string { return p.o.stream + "." + queue }

func (p *natsPeer) joins() bool { return false }

func (p *natsPeer) appender(connection int) appender {
	return p.connections[connection%len(p.connections)]
}

func (c *natsConnection) append(queues []string, value []byte, acked func(int)) error {
	ctx, stop := context.WithTimeout(context.Background(), natsWait)
	defer stop()
	if c.p.o.atomic {
		err := c.appendAtomically(ctx, queues, value)
		if err == nil {
			acked(len(queues))
		}
		return err
	}
	if len(queues) == 1 {
		_, err := c.js.Publish(ctx, c.p.subject(queues[0]), value)
		if err == nil {
			acked(1)
		}
		return err
	}
	futures := make([]jetstream.PubAckFuture, len(queues))
	for at, queue := range queues {
		var err error
		if futures[at], err = c.js.PublishAsync(c.p.subject(queue), value); err != nil {
			return err
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
			acked(1)
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// appendAtomically sends a batch that the server appends whole or not at all; the last message has the answer of all.
func (c *natsConnection) appendAtomically(ctx context.Context, queues []string, value []byte) error {
	id := fmt.Sprintf("%p-%d", c, c.batch.Add(1))
	for at, queue := range queues {
		message := nats.NewMsg(c.p.subject(queue))
		message.Data = value
		message.Header.Set("Nats-Batch-Id", id)
		message.Header.Set("Nats-Batch-Sequence", strconv.Itoa(at+1))
		if at+1 < len(queues) {
			if err := c.nc.PublishMsg(message); err != nil {
				return err
			}
			continue
		}
		message.Header.Set("Nats-Batch-Commit", "1")
		answer, err := c.nc.RequestMsgWithContext(ctx, message)
		if err != nil {
			return err
		}
		var ack struct {
			Error *jetstream.APIError `json:"error"`
			Count int                 `json:"count"`
		}
		if err := json.Unmarshal(answer.Data, &ack); err != nil {
			return err
		}
		if ack.Error != nil {
			return ack.Error
		}
		if ack.Count != len(queues) {
			return fmt.Errorf("the server appended %d of %d messages", ack.Count, len(queues))
		}
	}
	return nil
}

func (p *natsPeer) reader(connection int) reader {
	return p.connections[connection%len(p.connections)]
}

// read gets messages in one request where any replica may answer; else the last one, from the leader.
func (c *natsConnection) read(queue string, after uint64, limit int) (int, error) {
	if !c.p.o.direct {
		ctx, stop := context.WithTimeout(context.Background(), natsWaitTakeover)
		defer stop()
		_, err := c.stream.GetLastMsgForSubject(ctx, c.p.subject(queue))
		return 1, err
	}
	request, err := json.Marshal(map[string]any{"seq": after + 1, "next_by_subj": c.p.subject(queue), "batch": limit})
	if err != nil {
		return 0, err
	}
	inbox := c.nc.NewInbox()
	answers, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return 0, err
	}
	defer answers.Unsubscribe()
	if err := c.nc.PublishRequest("$JS.API.DIRECT.GET."+c.p.o.stream, inbox, request); err != nil {
		return 0, err
	}
	for count := 0; ; count++ {
		message, err := answers.NextMsg(natsWait)
		if err != nil {
			return count, err
		}
		switch status := message.Header.Get("Status"); status {
		case "":
		case "204", "404": // the end, and nothing found
			return count, nil
		default:
			return count, fmt.Errorf("a read was answered with status %s", status)
		}
	}
}

func (p *natsPeer) list() (uint64, error) {
	ctx, stop := context.WithTimeout(context.Background(), natsWait)
	defer stop()
	info, err := p.connections[0].stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return 0, err
	}
	return uint64(len(info.State.Subjects)), nil
}

// waiter makes a consumer of its own for the queue, in memory, and pulls one message after the other.
func (p *natsPeer) waiter(number int, queue string, got func([]byte)) error {
	c := p.connections[number%len(p.connections)]
	ctx, stop := context.WithTimeout(context.Background(), natsWait)
	defer stop()
	consumer, err := c.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: p.subject(queue), DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Minute,
	})
	if err != nil {
		return err
	}
	go func() {
		for p.waiting.Err() == nil {
			batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(natsPull), jetstream.FetchHeartbeat(natsHeartbeat))
			if err != nil {
				return
			}
			for message := range batch.Messages() {
				got(message.Data())
			}
		}
	}()
	return nil
}

func (p *natsPeer) end() (uint64, error) {
	ctx, stop := context.WithTimeout(context.Background(), natsWait)
	defer stop()
	info, err := p.connections[0].stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

func (p *natsPeer) appendAfter(connection int, queue string, last uint64, value []byte) (uint64, error) {
	ctx, stop := context.WithTimeout(context.Background(), natsWaitTakeover)
	defer stop()
	guard := jetstream.WithExpectLastSequencePerSubject(last)
	ack, err := p.connections[connection].js.Publish(ctx, p.subject(queue), value, guard, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

func (p *natsPeer) isMismatch(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == natsWrongLast
}

func (p *natsPeer) close() {
	if p.stopWaiting != nil {
		p.stopWaiting()
	}
	for _, c := range p.connections {
		c.nc.Close()
	}
	p.connections = nil
}
