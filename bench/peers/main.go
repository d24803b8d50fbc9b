// Load on peers of Duramen's queues: NATS JetStream (a stream, a subject for each queue) and Redis (a stream for each queue).
// The commands, their shapes of load and their reports are those of `duramen bench enqueue`, `retrieve`, `wait` and `takeover`.
// Two loads are for Duramen, too, since its own have none like them: `edit`, and `retrieve` with `--pace`.
// And workers that share queues: `drain`, `follow` and `late`, for Duramen, too.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

type options struct {
	peer, stream, edit, via                    string
	servers                                    []string
	queues, messages, reads, warmups           uint64
	batch, size, callers, connections, workers int
	readers, rate, limit, replicas, partitions int
	seconds, warmup, patience, pace            float64
	after                                      uint64
	spread, atomic, list, direct               bool
}

// peer is one of the systems that are compared.
type peer interface {
	// prepare connects, and makes the stream if it is missing.
	prepare(o *options) error
	// appender returns the appends of one connection; callers of it may call it at once unless it joins them.
	appender(connection int) appender
	// joins says that a good client sends the requests of callers that share a connection as one.
	joins() bool
	// reader returns the reads of one connection.
	reader(connection int) reader
	// list counts all queues.
	list() (uint64, error)
	// waiter begins to wait for the next messages of a queue, and calls `got` for each.
	waiter(number int, queue string, got func(value []byte)) error
	// end is the place of the last message, for `--after`.
	end() (uint64, error)
	close()
}

type appender interface {
	// append appends one message to each of these queues, tells how many are acknowledged, and returns when all are.
	append(queues []string, value []byte, acked func(count int)) error
}

type reader interface {
	// read returns how many elements of the queue it read, at most `limit`, from the place `after` on.
	read(queue string, after uint64, limit int) (int, error)
}

var errUnsupported = errors.New("this peer has no such operation")

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("peers enqueue|retrieve|wait|takeover|end|edit|drain|follow|late --peer nats|redis|duramen --servers HOST:PORT[,…]"))
	}
	o, servers := &options{}, ""
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.peer, "peer", "", "nats, redis or duramen")
	flags.StringVar(&servers, "servers", "", "addresses")
	flags.StringVar(&o.via, "via", "grpc", "grpc or http, to Duramen")
	flags.StringVar(&o.stream, "topic", "queues", "name of the stream, and the beginning of queues' names")
	flags.Uint64Var(&o.queues, "queues", 6, "number of queues")
	flags.Uint64Var(&o.messages, "messages", 0, "stop after so many messages")
	flags.Uint64Var(&o.warmups, "warmup-messages", 0, "messages that workers have before those that count")
	flags.Uint64Var(&o.reads, "reads", 0, "stop after so many reads")
	flags.Float64Var(&o.seconds, "seconds", 0, "stop after this time")
	flags.Float64Var(&o.warmup, "warmup-seconds", 0, "warm-up before the measured time")
	flags.Float64Var(&o.pace, "pace", 0, "reads to begin in a second, by callers that then are enough; 0 for no pause")
	flags.Float64Var(&o.patience, "patience", 60, "longest wait for the first read, or for one queue")
	flags.IntVar(&o.batch, "batch", 1, "messages of a request")
	flags.IntVar(&o.size, "size", 100, "bytes of a message")
	flags.IntVar(&o.callers, "callers", 1, "callers, each with one request at a time")
	flags.IntVar(&o.connections, "connections", 1, "connections that they share")
	flags.IntVar(&o.readers, "readers", 1, "readers that wait")
	flags.IntVar(&o.workers, "workers", 64, "workers, each with a connection of its own")
	flags.IntVar(&o.rate, "rate", 200, "messages to append in a second")
	flags.IntVar(&o.partitions, "partitions", 1, "partitions of a topic of Duramen, which finds them itself")
	flags.StringVar(&o.edit, "edit", "", "delete or replace an element a call, or append a message")
	flags.IntVar(&o.limit, "limit", 10, "most elements of a read, or of a lease")
	flags.IntVar(&o.replicas, "replicas", 1, "replicas of the stream")
	flags.Uint64Var(&o.after, "after", 0, "place to read behind")
	flags.BoolVar(&o.spread, "spread", false, "a request has messages of many queues, one of each")
	flags.BoolVar(&o.atomic, "atomic", false, "a request is an atomic batch of NATS")
	flags.BoolVar(&o.direct, "direct", true, "any replica answers reads of NATS")
	flags.BoolVar(&o.list, "list", false, "list all queues first")
	flags.Parse(os.Args[2:])
	o.servers = strings.Split(servers, ",")
	report, err := carryOut(os.Args[1], o)
	if err != nil {
		fail(err)
	}
	json.NewEncoder(os.Stdout).Encode(report)
}

func carryOut(command string, o *options) (any, error) {
	kinds := map[string]func() peer{"nats": newNats, "redis": newRedis, "duramen": newDuramen}
	commands := map[string]func(peer, *options) (any, error){
		"enqueue": enqueue, "retrieve": retrieve, "wait": wait, "takeover": takeover, "end": end, "edit": edit,
	}
	crews := map[string]func() workPeer{"duramen": newDuramenWork, "redis": newRedisWork}
	works := map[string]func(workPeer, *options) (any, error){"drain": drain, "follow": follow, "late": late}
	if work, known := works[command]; known && crews[o.peer] != nil {
		return work(crews[o.peer](), o)
	}
	if load, known := commands[command]; known && kinds[o.peer] != nil {
		return load(kinds[o.peer](), o)
	}
	return nil, fmt.Errorf("there is no command %q for a peer %q", command, o.peer)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func end(p peer, o *options) (any, error) {
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	place, err := p.end()
	return map[string]uint64{"end": place}, err
}
