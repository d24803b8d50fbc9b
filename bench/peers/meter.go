package main

import (
	"math"
	"slices"
	"sync"
	"syscall"
	"time"
)

// meter counts within the measured time, which begins when the warm-up is over.
type meter struct {
	mutex      sync.Mutex
	begin, end time.Time
	last       time.Time
	cpu        float64
	hasCPU     bool
	total      uint64
	took       []time.Duration
}

type measured struct {
	Seconds    float64   `json:"seconds"`
	Total      uint64    `json:"total"`
	ClientCPU  float64   `json:"client_cpu_seconds"`
	Latency    latencies `json:"latency_us"`
	PerSecond  float64   `json:"messages_per_second"`
	Callers    int       `json:"callers"`
	Connection int       `json:"connections"`
	Queues     uint64    `json:"queues"`
}

type latencies struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func newMeter(warmup, seconds float64) *meter {
	m := &meter{begin: time.Now().Add(duration(warmup)), cpu: cpuSeconds(), hasCPU: warmup == 0}
	if seconds > 0 {
		m.end = m.begin.Add(duration(seconds))
	}
	return m
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func (m *meter) isOver(now time.Time) bool { return !m.end.IsZero() && !now.Before(m.end) }

func (m *meter) acked(count int) { m.done(uint64(count)) }

// done counts messages that ended together and began at `begun`, one for each caller.
func (m *meter) done(count uint64, begun ...time.Time) {
	now := time.Now()
	if now.Before(m.begin) || m.isOver(now) {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if !m.hasCPU {
		m.cpu, m.hasCPU = cpuSeconds(), true
	}
	m.last = now
	m.total += count
	for _, at := range begun {
		m.took = append(m.took, now.Sub(at))
	}
}

// finish ends the measured time with the last thing that was done, if it was the last of all `wanted`.
func (m *meter) finish(wanted uint64, o *options) measured {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	end := m.end
	if end.IsZero() || wanted > 0 && m.total >= wanted {
		end = m.last
	}
	seconds := math.Max(end.Sub(m.begin).Seconds(), 1e-9)
	return measured{
		Seconds: seconds, Total: m.total, ClientCPU: cpuSeconds() - m.cpu, Latency: quantiles(m.took),
		PerSecond: float64(m.total) / seconds, Callers: o.callers, Connection: o.connections, Queues: o.queues,
	}
}

func quantiles(took []time.Duration) latencies {
	if len(took) == 0 {
		return latencies{}
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		index := min(len(took)-1, int(q*float64(len(took))))
		return math.Round(took[index].Seconds()*1e7) / 10
	}
	var sum time.Duration
	for _, each := range took {
		sum += each
	}
	mean := math.Round(sum.Seconds()/float64(len(took))*1e7) / 10
	return latencies{Mean: mean, P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	seconds := func(it syscall.Timeval) float64 { return float64(it.Sec) + float64(it.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}
