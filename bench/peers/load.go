package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// grace is how long a server may work on requests whose time is over, before the next load begins.
const grace = 5 * time.Second

var errNothing = errors.New("nothing was acknowledged in the measured time")

// name is the name of a queue: the subject's last token, or the end of the key.
func name(queue uint64) string { return fmt.Sprintf("queue-%08d", queue) }

// rounds goes through all queues again and again, so that neighbours in time are none by name.
type rounds struct{ count, stride uint64 }

func newRounds(count uint64) rounds {
	stride := uint64(float64(count) * 0.618)
	for divisor(stride, count) != 1 {
		stride++
	}
	return rounds{count, stride}
}

func divisor(a, b uint64) uint64 {
	for a != 0 {
		a, b = b%a, a
	}
	return b
}

func (r rounds) nth(number uint64) string { return name(number % r.count * r.stride % r.count) }

func noise(size int) []byte {
	value := make([]byte, size)
	chance := rand.NewChaCha8([32]byte{})
	chance.Read(value)
	return value
}

func enqueue(p peer, o *options) (any, error) {
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	order, value, m := newRounds(o.queues), noise(o.size), newMeter(o.warmup, o.seconds)
	var mutex sync.Mutex
	var number, sent uint64
	next := func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		count := uint64(o.batch)
		if o.messages > 0 {
			count = min(count, o.messages-sent)
		}
		if count == 0 || m.isOver(time.Now()) {
			return nil
		}
		queues := make([]string, count)
		for at := range queues {
			if o.spread {
				queues[at] = order.nth(sent + uint64(at))
			} else {
				queues[at] = order.nth(number)
			}
		}
		number++
		sent += count
		return queues
	}
	var all sync.WaitGroup
	failures := make(chan error, o.callers)
	// caller makes the requests of so many callers as one.
	caller := func(to appender, callers int) {
		for {
			var queues []string
			count := 0
			for range callers {
				if some := next(); some != nil {
					queues = append(queues, some...)
					count++
				}
			}
			if count == 0 {
				return
			}
			begun := time.Now()
			if err := to.append(queues, value, m.acked); err != nil {
				failures <- err
				return
			}
			m.done(0, slices.Repeat([]time.Time{begun}, count)...)
		}
	}
	for connection := range o.connections {
		to := p.appender(connection)
		callers := (o.callers - connection + o.connections - 1) / o.connections
		if p.joins() {
			all.Go(func() { caller(to, callers) })
			continue
		}
		for range callers {
			all.Go(func() { caller(to, 1) })
		}
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	var over <-chan time.Time
	if !m.end.IsZero() {
		over = time.After(time.Until(m.end) + grace)
	}
	select {
	case <-ended:
	case <-over: // requests that take as long count no more
	}
	select {
	case err := <-failures:
		return nil, err
	default:
	}
	report := m.finish(o.messages, o)
	if report.Total == 0 {
		return nil, errNothing
	}
	return report, nil
}

func retrieve(p peer, o *options) (any, error) {
	begun := time.Now()
	order := newRounds(o.queues)
	for {
		err := p.prepare(o)
		if err == nil {
			_, err = p.reader(0).read(order.nth(rand.Uint64()), o.after, o.limit)
		}
		if err == nil {
			break
		}
		p.close()
		if time.Since(begun) > duration(o.patience) {
			return nil, err
		}
		time.Sleep(2 * time.Millisecond)
	}
	defer p.close()
	report := struct {
		First     float64  `json:"first_s"`
		Listed    *uint64  `json:"listed"`
		List      *float64 `json:"list_s"`
		Elements  uint64   `json:"elements"`
		Short     uint64   `json:"short"`
		PerSecond float64  `json:"reads_per_second"`
		measured
	}{First: time.Since(begun).Seconds()}
	if o.list {
		begun := time.Now()
		count, err := p.list()
		if err != nil {
			return nil, err
		}
		took := time.Since(begun).Seconds()
		report.Listed, report.List = &count, &took
	}
	m := newMeter(o.warmup, o.seconds)
	start := time.Now()
	var done, elements, short atomic.Uint64
	var all sync.WaitGroup
	failures := make(chan error, o.callers)
	for at := range o.callers {
		from := p.reader(at % o.connections)
		all.Go(func() {
			for !m.isOver(time.Now()) {
				number := done.Add(1)
				if o.reads > 0 && number > o.reads {
					break
				}
				begun := time.Now()
				if o.pace > 0 {
					// A read that begins late, since all callers are busy, took from when it was due.
					begun = start.Add(duration(float64(number) / o.pace))
					if m.isOver(begun) {
						break
					}
					time.Sleep(time.Until(begun))
				}
				count, err := from.read(order.nth(rand.Uint64()), o.after, o.limit)
				if err != nil {
					failures <- err
					return
				}
				m.done(1, begun)
				elements.Add(uint64(count))
				if count < o.limit {
					short.Add(1)
				}
			}
		})
	}
	all.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return nil, err
	}
	report.measured = m.finish(o.reads, o)
	report.Elements, report.Short, report.PerSecond = elements.Load(), short.Load(), report.measured.PerSecond
	return report, nil
}

func wait(p peer, o *options) (any, error) {
	if o.readers > 0 {
		o.queues = uint64(o.readers)
	}
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	epoch := time.Now()
	var delivered atomic.Pointer[meter]
	got := func(value []byte) {
		due := epoch.Add(time.Duration(binary.BigEndian.Uint64(value)))
		if m := delivered.Load(); m != nil {
			m.done(1, due)
		}
	}
	failures := make(chan error, 1)
	var begins sync.WaitGroup
	turns := make(chan struct{}, 64)
	for number := range o.readers {
		begins.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := p.waiter(number, name(uint64(number)), got); err != nil {
				select {
				case failures <- err:
				default:
				}
			}
		})
	}
	begins.Wait()
	begun := time.Since(epoch).Seconds()
	appended := newMeter(o.warmup, o.seconds)
	delivered.Store(newMeter(o.warmup, o.seconds))
	start := time.Now().Add(duration(o.warmup / 2))
	order, to := newRounds(o.queues), p.appender(0)
	var writes sync.WaitGroup
	for number := 0; ; number++ {
		due := start.Add(time.Duration(number) * time.Second / time.Duration(o.rate))
		if appended.isOver(due) {
			break
		}
		time.Sleep(time.Until(due))
		value := make([]byte, o.size)
		binary.BigEndian.PutUint64(value, uint64(due.Sub(epoch)))
		writes.Go(func() {
			if err := to.append([]string{order.nth(uint64(number))}, value, appended.acked); err != nil {
				select {
				case failures <- err:
				default:
				}
				return
			}
			appended.done(0, due)
		})
	}
	writes.Wait()
	select {
	case err := <-failures:
		return nil, err
	default:
	}
	if appended.total == 0 {
		return nil, errNothing
	}
	report := struct {
		Readers int       `json:"readers"`
		Rate    int       `json:"rate"`
		Begun   float64   `json:"readers_began_s"`
		Append  latencies `json:"append_us"`
		measured
	}{Readers: o.readers, Rate: o.rate, Begun: begun}
	report.Append = appended.finish(0, o).Latency
	report.measured = delivered.Load().finish(0, o)
	return report, nil
}

// guarded is a peer whose appends may depend on the last message of their queue.
type guarded interface {
	// appendAfter appends if `last` is the place of the queue's last message, and returns its own.
	appendAfter(connection int, queue string, last uint64, value []byte) (uint64, error)
	// isMismatch says that the queue ended at another place.
	isMismatch(err error) bool
}

type pass struct {
	FirstAppend float64   `json:"first_append_s"`
	FirstRead   float64   `json:"first_read_s"`
	LastAppend  float64   `json:"last_append_s"`
	LastRead    float64   `json:"last_read_s"`
	Append      latencies `json:"append_us"`
	Read        latencies `json:"read_us"`
	Failed      uint64    `json:"failed"`
	FoundDone   uint64    `json:"found_done"`
}

func takeover(p peer, o *options) (any, error) {
	g, is := p.(guarded)
	if !is {
		return nil, errUnsupported
	}
	if err := p.prepare(o); err != nil {
		return nil, err
	}
	defer p.close()
	lasts, value := make([]uint64, o.queues), noise(o.size)
	if _, err := run(p, g, o, lasts, value); err != nil {
		return nil, err
	}
	before, err := run(p, g, o, lasts, value)
	if err != nil {
		return nil, err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil, err
	}
	after, err := run(p, g, o, lasts, value)
	if err != nil {
		return nil, err
	}
	return map[string]any{"queues": o.queues, "callers": o.callers, "before": before, "after": after}, nil
}

// run appends to each queue behind its last message, and reads it.
func run(p peer, g guarded, o *options, lasts []uint64, value []byte) (*pass, error) {
	begun := time.Now()
	var next, failed, foundDone atomic.Uint64
	var mutex sync.Mutex
	var appends, reads, appended, read []time.Duration
	var all sync.WaitGroup
	failures := make(chan error, o.callers)
	for caller := range o.callers {
		connection := caller % o.connections
		from := p.reader(connection)
		all.Go(func() {
			for {
				queue := next.Add(1) - 1
				if queue >= o.queues {
					return
				}
				start, tries := time.Now(), 0
				for ; ; tries++ {
					place, err := g.appendAfter(connection, name(queue), lasts[queue], value)
					if err == nil {
						lasts[queue] = place
						break
					}
					if g.isMismatch(err) && tries > 0 {
						foundDone.Add(1)
						break
					}
					if g.isMismatch(err) || time.Since(begun) > duration(o.patience) {
						failures <- err
						return
					}
					failed.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
				mutex.Lock()
				appends, appended = append(appends, time.Since(begun)), append(appended, time.Since(start))
				mutex.Unlock()
				start = time.Now()
				for {
					_, err := from.read(name(queue), 0, 100)
					if err == nil {
						break
					}
					if time.Since(begun) > duration(o.patience) {
						failures <- err
						return
					}
					failed.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
				mutex.Lock()
				reads, read = append(reads, time.Since(begun)), append(read, time.Since(start))
				mutex.Unlock()
			}
		})
	}
	all.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return nil, err
	}
	return &pass{
		FirstAppend: slices.Min(appends).Seconds(), FirstRead: slices.Min(reads).Seconds(),
		LastAppend: slices.Max(appends).Seconds(), LastRead: slices.Max(reads).Seconds(),
		Append: quantiles(appended), Read: quantiles(read), Failed: failed.Load(), FoundDone: foundDone.Load(),
	}, nil
}
