package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Messages of one request of a fill.
	fillBatch = 1000
	// Requests of a fill that are under way.
	fillCallers = 4
	// Longest wait of one lease.
	leaseWait = 10 * time.Second
	// A message has its number, and the time when it is due.
	workHeader = 16
	// Delays are spread evenly between these.
	shortestDelay, longestDelay = time.Second, 10 * time.Second
)

// workPeer is a system whose workers share the messages of many queues.
type workPeer interface {
	// prepare connects, and makes the group of workers.
	prepare(o *options) error
	// fill enqueues messages, each into its queue.
	fill(queues []string, values [][]byte) error
	// send enqueues one message, which no worker is to get before its time, if it has one.
	send(queue string, value []byte, at time.Time) error
	// worker returns a worker with a connection of its own.
	worker(number int) (worker, error)
	close()
}

// worker leases messages and settles them, one call at a time.
type worker interface {
	// lease waits for messages and returns them with the names of their leases; none if none came in time.
	lease(ctx context.Context, limit int, wait time.Duration) (names []string, values [][]byte, err error)
	// settle returns when all of these are settled.
	settle(ctx context.Context, names []string) error
}

// works counts messages that workers had.
type works struct {
	seen                   []atomic.Uint32
	settled, twice         atomic.Uint64
	mutex                  sync.Mutex
	leases, settles, after []time.Duration
	last                   time.Time
}

func (w *works) had(number uint64) {
	if number < uint64(len(w.seen)) && w.seen[number].Add(1) > 1 {
		w.twice.Add(1)
	}
}

func (w *works) took(lease, settle time.Duration) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.leases, w.settles, w.last = append(w.leases, lease), append(w.settles, settle), time.Now()
}

func message(size int, number uint64, due time.Duration, chance *rand.ChaCha8) []byte {
	value := make([]byte, max(size, workHeader))
	chance.Read(value)
	binary.BigEndian.PutUint64(value, number)
	binary.BigEndian.PutUint64(value[8:], uint64(due))
	return value
}

// fillWith enqueues so many messages at random queues, numbered from 0.
func fillWith(p workPeer, o *options, count uint64) error {
	var next atomic.Uint64
	var all sync.WaitGroup
	failures := make(chan error, fillCallers)
	for caller := range fillCallers {
		all.Go(func() {
			chance := rand.NewChaCha8([32]byte{byte(caller)})
			order := rand.New(chance)
			for {
				first := next.Add(fillBatch) - fillBatch
				if first >= count {
					return
				}
				var queues []string
				var values [][]byte
				for number := first; number < min(first+fillBatch, count); number++ {
					queues = append(queues, name(order.Uint64N(o.queues)))
					values = append(values, message(o.size, number, 0, chance))
				}
				if err := p.fill(queues, values); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failures)
	return <-failures
}

// crew has all workers lease and settle, until `isOver` says so after a settlement, or the context ends.
func crew(ctx context.Context, workers []worker, o *options, w *works, got func(number uint64, due time.Duration), isOver func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make(chan error, len(workers))
	var all sync.WaitGroup
	for _, each := range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				names, values, err := each.lease(ctx, o.limit, leaseWait)
				leased := time.Now()
				if err == nil && len(names) == 0 {
					continue
				}
				for _, value := range values {
					number := binary.BigEndian.Uint64(value)
					w.had(number)
					got(number, time.Duration(binary.BigEndian.Uint64(value[8:])))
				}
				if err == nil {
					err = each.settle(ctx, names)
				}
				if err != nil {
					if ctx.Err() == nil {
						failures <- err
						cancel()
					}
					return
				}
				w.took(leased.Sub(begun), time.Since(leased))
				w.settled.Add(uint64(len(names)))
				if isOver() {
					cancel()
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func crewOf(p workPeer, o *options) ([]worker, error) {
	var workers []worker
	for number := range o.workers {
		each, err := p.worker(number)
		if err != nil {
			return nil, err
		}
		workers = append(workers, each)
	}
	return workers, nil
}

// drain has workers empty the queues: first those of a warm-up, then, after a word on stdin, those that count.
func drain(p workPeer, o *options) (any, error) {
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	workers, err := crewOf(p, o)
	if err != nil {
		return nil, err
	}
	run := func(count uint64, seconds float64) (*works, time.Time, error) {
		w := &works{seen: make([]atomic.Uint32, count)}
		ctx, cancel := context.WithTimeout(context.Background(), duration(seconds))
		defer cancel()
		begun := time.Now()
		err := crew(ctx, workers, o, w, func(uint64, time.Duration) {}, func() bool { return w.settled.Load() >= count })
		return w, begun, err
	}
	if o.warmups > 0 {
		if err := fillWith(p, o, o.warmups); err != nil {
			return nil, err
		}
		w, _, err := run(o.warmups, o.patience)
		if err != nil {
			return nil, err
		}
		if w.settled.Load() < o.warmups {
			return nil, fmt.Errorf("of %d messages of the warm-up %d were settled", o.warmups, w.settled.Load())
		}
	}
	if err := fillWith(p, o, o.messages); err != nil {
		return nil, err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil, err
	}
	cpu := cpuSeconds()
	w, begun, err := run(o.messages, o.seconds)
	if err != nil {
		return nil, err
	}
	total, seconds := w.settled.Load(), w.last.Sub(begun).Seconds()
	if total == 0 {
		return nil, errNothing
	}
	return map[string]any{
		"workers": o.workers, "queues": o.queues, "limit": o.limit, "messages": o.messages, "total": total, "seconds": seconds,
		"messages_per_second": float64(total) / seconds, "client_cpu_seconds": cpuSeconds() - cpu, "twice": w.twice.Load(),
		"calls": len(w.leases), "lease_us": quantiles(w.leases), "settle_us": quantiles(w.settles),
	}, nil
}

// follow has workers wait for messages that come at a steady rate.
func follow(p workPeer, o *options) (any, error) {
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	count := uint64((o.warmup + o.seconds) * float64(o.rate))
	epoch, first := time.Now(), uint64(o.warmup*float64(o.rate))
	w := &works{seen: make([]atomic.Uint32, count)}
	got := func(number uint64, due time.Duration) {
		if took := time.Since(epoch) - due; number >= first {
			w.mutex.Lock()
			w.after = append(w.after, took)
			w.mutex.Unlock()
		}
	}
	start := 500 * time.Millisecond
	at := func(number uint64) time.Duration {
		return start + time.Duration(number)*time.Second/time.Duration(o.rate)
	}
	send := func(number uint64, queue string, chance *rand.ChaCha8) (func() error, time.Time) {
		value, due := message(o.size, number, at(number), chance), epoch.Add(at(number))
		return func() error { return p.send(queue, value, time.Time{}) }, due
	}
	return w.steady(p, o, count, first, got, send)
}

// late has workers wait for messages that have delays.
func late(p workPeer, o *options) (any, error) {
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	epoch := time.Now()
	w := &works{seen: make([]atomic.Uint32, o.messages)}
	var early atomic.Uint64
	got := func(_ uint64, due time.Duration) {
		took := time.Since(epoch) - due
		if took < 0 {
			early.Add(1)
		}
		w.mutex.Lock()
		w.after = append(w.after, took)
		w.mutex.Unlock()
	}
	o.rate = 2 * int(o.messages)
	send := func(number uint64, queue string, chance *rand.ChaCha8) (func() error, time.Time) {
		now := time.Now()
		// The node's clock counts milliseconds.
		due := now.Add(shortestDelay + time.Duration(chance.Uint64()%uint64(longestDelay-shortestDelay))).Truncate(time.Millisecond)
		value := message(o.size, number, due.Sub(epoch), chance)
		return func() error { return p.send(queue, value, due) }, now
	}
	report, err := w.steady(p, o, o.messages, 0, got, send)
	if err == nil {
		report["early"] = early.Load()
	}
	return report, err
}

// steady sends messages, each when it is due, while workers wait for them, and until they have all.
func (w *works) steady(
	p workPeer, o *options, count, first uint64, got func(uint64, time.Duration),
	make func(number uint64, queue string, chance *rand.ChaCha8) (func() error, time.Time),
) (map[string]any, error) {
	workers, err := crewOf(p, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration(o.warmup+o.seconds)+longestDelay+grace)
	defer cancel()
	ended := newEnd()
	go func() {
		ended <- crew(ctx, workers, o, w, got, func() bool { return w.settled.Load() >= count })
	}()
	time.Sleep(200 * time.Millisecond)
	chance := rand.NewChaCha8([32]byte{1})
	order := rand.New(chance)
	var writes sync.WaitGroup
	var mutex sync.Mutex
	var acks []time.Duration
	failures := newEnd()
	cpu := cpuSeconds()
	begun := time.Now()
	for number := range count {
		// What is sent has a time of its own, or else comes evenly.
		time.Sleep(time.Until(begun.Add(time.Duration(number) * time.Second / time.Duration(o.rate))))
		send, due := make(number, name(order.Uint64N(o.queues)), chance)
		time.Sleep(time.Until(due))
		writes.Go(func() {
			if err := send(); err != nil {
				select {
				case failures <- err:
				default:
				}
				return
			}
			if took := time.Since(due); number >= first {
				mutex.Lock()
				acks = append(acks, took)
				mutex.Unlock()
			}
		})
	}
	writes.Wait()
	select {
	case err := <-failures:
		return nil, err
	case err := <-ended:
		if err != nil {
			return nil, err
		}
	}
	if len(w.after) == 0 {
		return nil, errors.New("no worker had anything")
	}
	return map[string]any{
		"workers": o.workers, "queues": o.queues, "limit": o.limit, "rate": o.rate, "messages": count, "total": w.settled.Load(),
		"twice": w.twice.Load(), "client_cpu_seconds": cpuSeconds() - cpu, "seconds": time.Since(begun).Seconds(),
		"append_us": quantiles(acks), "latency_us": quantiles(w.after), "settle_us": quantiles(w.settles),
	}, nil
}

func newEnd() chan error { return make(chan error, 1) }
