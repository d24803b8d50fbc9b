package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"
)

const (
	topic      = "chaos"
	partitions = 6
	// How long a client waits for what it asked.
	patience = 3 * time.Second
	// Longer than a node stands still.
	patienceOfAskers = 8 * time.Second
	// For producers that never give up, when all faults are over.
	lastAnswers = time.Minute
	// For a process to end, after its last answers.
	lastWords = 30 * time.Second
	perSecond = 120
)

// Clients drive the cluster and note what they did.
type Clients struct {
	bootstrap []string
	history   *History
	topicID   [16]byte
	stop      chan struct{}
	all       sync.WaitGroup
	// What of a client of another language is left to end.
	pipes     []io.Closer
	processes []*os.Process
	mutex     sync.Mutex
	failed    []string
}

// Ordered says whose appends stand in order and without gaps: see Check.
func Ordered(client string) bool {
	return strings.HasPrefix(client, "franz-go-") || strings.HasPrefix(client, "fast-") || client == "librdkafka"
}

func StartClients(bootstrap []string, history *History, topicID [16]byte, python, errorsTo string) (*Clients, error) {
	c := &Clients{bootstrap: bootstrap, history: history, topicID: topicID, stop: make(chan struct{})}
	for i := range 2 {
		c.start(func() error { return c.produce(fmt.Sprintf("franz-go-%d", i)) })
	}
	for i := range 3 {
		c.start(func() error { return c.produceOnce(fmt.Sprintf("once-%d", i)) })
	}
	c.start(func() error { return c.consume("franz-go-reader") })
	for node := 1; node <= nodes; node++ {
		c.start(func() error { return c.ask(fmt.Sprintf("asker-%d", node), node) })
	}
	return c, c.startLibrdkafka(python, errorsTo)
}

func (c *Clients) start(run func() error) {
	c.all.Add(1)
	go func() {
		defer c.all.Done()
		if err := run(); err != nil {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			c.failed = append(c.failed, err.Error())
		}
	}()
}

// Finish asks all to end, waits for their last answers, and returns what went wrong with clients themselves.
func (c *Clients) Finish() []string {
	close(c.stop)
	for _, pipe := range c.pipes {
		pipe.Close()
	}
	// A process that hangs says where each of its threads is.
	hangs := time.AfterFunc(lastAnswers+lastWords, func() {
		for _, process := range c.processes {
			process.Signal(unix.SIGABRT)
		}
	})
	defer hangs.Stop()
	c.all.Wait()
	return c.failed
}

func (c *Clients) isOver() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *Clients) pause(length time.Duration) bool {
	select {
	case <-c.stop:
		return false
	case <-time.After(length):
		return true
	}
}

func newClient(bootstrap []string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap...),
		kgo.DialTimeout(2 * time.Second),
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(5 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProduceRequestTimeout(patience),
		kgo.ProducerLinger(5 * time.Millisecond),
	}, login.options()...), options...)...)
}

// An idempotent producer that never gives up.
func (c *Clients) produce(name string) error {
	// Else it gives a record up when a node dies between taking a connection and its first answer: no SASL, it takes that for.
	client, err := newClient(c.bootstrap, kgo.MaxBufferedRecords(100), kgo.AlwaysRetryEOF())
	if err != nil {
		return err
	}
	var untold sync.WaitGroup
	for number := 0; c.pause(time.Second / perSecond); number++ {
		op := Op{Client: name, Kind: Append, Partition: rand.Int31n(partitions), Value: fmt.Sprintf("%s:%d", name, number), Number: number}
		untold.Add(1)
		record := &kgo.Record{Topic: topic, Partition: op.Partition, Key: []byte(op.Value), Value: valueOf(op.Value)}
		op.Call = now()
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			op.Offset = record.Offset
			c.note(op, err)
			untold.Done()
		})
	}
	ended := make(chan struct{})
	go func() {
		untold.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lastAnswers):
		client.Close() // which answers what is left, with an error
		<-ended
		return fmt.Errorf("%s got no answer to what it sent within %s, though all faults were over", name, lastAnswers)
	}
	client.Close()
	return nil
}

// Sends a record at a time, once, and does not know what came of it if no answer comes.
func (c *Clients) produceOnce(name string) error {
	client, err := newClient(c.bootstrap, kgo.DisableIdempotentWrite(), kgo.RecordRetries(0), kgo.ProducerLinger(0),
		kgo.MaxProduceRequestsInflightPerBroker(1))
	if err != nil {
		return err
	}
	defer client.Close()
	for number := 0; c.pause(20 * time.Millisecond); number++ {
		op := Op{Client: name, Kind: Append, Partition: rand.Int31n(partitions), Value: fmt.Sprintf("%s:%d", name, number), Number: number}
		record := &kgo.Record{Topic: topic, Partition: op.Partition, Key: []byte(op.Value), Value: valueOf(op.Value)}
		context, cancel := context.WithTimeout(context.Background(), patience)
		op.Call = now()
		err := client.ProduceSync(context, record).FirstErr()
		op.Offset = record.Offset
		c.note(op, err)
		cancel()
	}
	return nil
}

// Follows all partitions from their beginning.
func (c *Clients) consume(name string) error {
	from := make(map[int32]kgo.Offset)
	for partition := range int32(partitions) {
		from[partition] = kgo.NewOffset().At(0)
	}
	client, err := newClient(c.bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(200*time.Millisecond), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return err
	}
	defer client.Close()
	for !c.isOver() {
		context, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		call := now()
		client.PollFetches(context).EachPartition(func(fetched kgo.FetchTopicPartition) {
			op := Op{Client: name, Kind: Read, Partition: fetched.Partition, Call: call}
			if err := fetched.Err; err != nil && !errors.Is(err, context.Err()) {
				c.note(op, err)
			}
			c.noteRead(op, fetched.Records)
		})
		cancel()
	}
	return nil
}

func (c *Clients) noteRead(op Op, records []*kgo.Record) {
	if len(records) == 0 {
		return
	}
	op.Offset = records[0].Offset
	for i, record := range records {
		if record.Offset != op.Offset+int64(i) {
			op.Values = append(op.Values, fmt.Sprintf("a gap before %d", record.Offset))
			break
		}
		op.Values = append(op.Values, nameOf(record.Key, record.Value))
	}
	c.note(op, nil)
}

// Asks one node, whoever leads, where partitions end, and what is anywhere in them. It does not wait for an answer before it
// asks again: who stood still is asked what happened meanwhile, and may not know.
func (c *Clients) ask(name string, node int) error {
	client, err := newClient(c.bootstrap[node-1:node], kgo.RequestRetries(0), kgo.RequestTimeoutOverhead(patienceOfAskers))
	if err != nil {
		return err
	}
	defer client.Close()
	var ends [partitions]atomic.Int64
	var asked sync.WaitGroup
	for c.pause(25 * time.Millisecond) {
		asked.Add(1)
		go func() {
			defer asked.Done()
			partition := rand.Int31n(partitions)
			context, cancel := context.WithTimeout(context.Background(), patienceOfAskers)
			defer cancel()
			op := Op{Client: name, Kind: End, Node: node, Partition: partition, Call: now()}
			if rand.Intn(2) == 0 {
				var err error
				op.Offset, err = endOf(context, client, partition)
				ends[partition].Store(max(op.Offset, ends[partition].Load()))
				c.note(op, err)
				return
			}
			op.Kind = Read
			from := rand.Int63n(ends[partition].Load() + 1)
			fetched, err := fetch(context, client, c.topicID, partition, from)
			if err != nil {
				c.note(op, err)
			}
			c.noteRead(op, fetched.Records)
		}()
	}
	asked.Wait()
	return nil
}

// endOf asks the client's first seed, and nobody else.
func endOf(context context.Context, client *kgo.Client, partition int32) (int64, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	its := kmsg.NewListOffsetsRequestTopicPartition()
	its.Partition, its.Timestamp = partition, -1
	asked.Partitions = append(asked.Partitions, its)
	request.Topics = append(request.Topics, asked)
	response, err := client.SeedBrokers()[0].Request(context, request)
	if err != nil {
		return 0, err
	}
	told := response.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
	return told.Offset, kerr.ErrorForCode(told.ErrorCode)
}

// fetch asks the client's first seed, and nobody else, and does not wait for more than is there.
func fetch(context context.Context, client *kgo.Client, topicID [16]byte, partition int32, from int64) (kgo.FetchPartition, error) {
	request := kmsg.NewPtrFetchRequest()
	request.ReplicaID, request.MaxWaitMillis, request.MinBytes, request.MaxBytes = -1, 0, 0, 1<<20
	asked := kmsg.NewFetchRequestTopic()
	asked.Topic, asked.TopicID = topic, topicID
	its := kmsg.NewFetchRequestTopicPartition()
	its.Partition, its.FetchOffset, its.CurrentLeaderEpoch, its.PartitionMaxBytes = partition, from, -1, 64<<10
	asked.Partitions = append(asked.Partitions, its)
	request.Topics = append(request.Topics, asked)
	response, err := client.SeedBrokers()[0].Request(context, request)
	if err != nil {
		return kgo.FetchPartition{}, err
	}
	told := response.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(told.ErrorCode); err != nil {
		return kgo.FetchPartition{}, err
	}
	options := kgo.ProcessFetchPartitionOpts{Offset: from, Topic: topic, Partition: partition}
	fetched, _ := kgo.ProcessFetchPartition(options, &told.Topics[0].Partitions[0], kgo.DefaultDecompressor(), nil)
	return fetched, fetched.Err
}

// note completes an operation and adds it to the history.
func (c *Clients) note(op Op, err error) {
	op.Return = now()
	op.Outcome = OK
	if err != nil {
		op.Offset = -1
		op.Outcome, op.Error, op.Retriable = Unknown, err.Error(), isRetriable(err)
		// Kafka's brokers refuse with it before they append.
		if errors.Is(err, kerr.NotEnoughReplicas) {
			op.Outcome = Fail
		}
	}
	c.history.Add(op)
}

// An error of the broker's says for itself whether to try again; any other one is of the way to it.
func isRetriable(err error) bool {
	var loss *kgo.ErrDataLoss
	if errors.As(err, &loss) {
		return false
	}
	var told *kerr.Error
	return !errors.As(err, &told) || told.Retriable
}

// begin starts a process with pipes to it and from it. It ends when the first one is closed.
func (c *Clients) begin(process *exec.Cmd, errorsTo string) (io.WriteCloser, io.Reader, error) {
	told, err := process.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	said, err := process.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if process.Stderr, err = os.Create(errorsTo); err != nil {
		return nil, nil, err
	}
	if err := process.Start(); err != nil {
		return nil, nil, err
	}
	c.processes = append(c.processes, process.Process)
	return told, said, nil
}

func (c *Clients) startLibrdkafka(python, errorsTo string) error {
	script := os.Getenv("CHAOS_DIRECTORY") + "/librdkafka.py"
	words := append([]string{script, strings.Join(c.bootstrap, ","), topic, strconv.Itoa(partitions), "librdkafka"}, login.words()...)
	process := exec.Command(python, words...)
	end, said, err := c.begin(process, errorsTo)
	if err != nil {
		return err
	}
	c.pipes = append(c.pipes, end)
	c.start(func() error {
		lines := bufio.NewScanner(said)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var op Op
			if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
				return fmt.Errorf("librdkafka.py said %q: %w", lines.Text(), err)
			}
			if told := kerr.ErrorForCode(op.Code); told != nil {
				op.Retriable = kerr.IsRetriable(told)
			}
			c.history.Add(op)
		}
		if err := process.Wait(); err != nil {
			return fmt.Errorf("librdkafka.py: %w; see %s", err, errorsTo)
		}
		return lines.Err()
	})
	return nil
}
