// Three real nodes, real clients, faults on a seeded schedule, and a checker of all that the clients saw. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// What is demanded when all faults are over.
	formsWithin     = 30 * time.Second
	appendsWithin   = 15 * time.Second
	identicalWithin = 30 * time.Second
	readsWithin     = 60 * time.Second
	// A run in which less was acknowledged has tested nothing.
	acknowledgedMin = 500
	editedMin       = 30
	acceptedMin     = 100
)

type options struct {
	seed    int64
	length  time.Duration
	minutes float64
	faults  string
	keep    bool
	strict  bool
	binary  string
	other   string
	python  string
	history string
	// Whom nodes ask who it is.
	security Security
}

func main() {
	var o options
	flag.Int64Var(&o.seed, "seed", 0, "repeats a schedule; a fresh one otherwise")
	flag.DurationVar(&o.length, "length", time.Minute, "of the faults of one run")
	flag.Float64Var(&o.minutes, "minutes", 0, "goes on with fresh seeds, a new cluster for each, until the time is over")
	flag.StringVar(&o.faults, "faults", "", "only these, with commas; all otherwise")
	flag.BoolVar(&o.keep, "keep", false, "keeps history, logs and data also of a run that found nothing")
	flag.BoolVar(&o.strict, "strict", false, "lets no node lease what is done, also if it was deposed and does not know it")
	flag.StringVar(&o.binary, "binary", os.Getenv("DURAMEN_BIN"), "of duramen")
	flag.StringVar(&o.other, "other", "", "another build, for every second start of each node: upgrades, and back")
	flag.StringVar(&o.python, "python", "python3", "which has confluent-kafka")
	security := flag.String("security", "", "open, closed or rolling; with --minutes one run after the other otherwise, else open")
	flag.Parse()
	inTurn := *security == "" && o.minutes > 0 && o.other == ""
	o.security = Open
	if *security != "" {
		var err error
		if o.security, err = readSecurity(*security); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	if o.seed == 0 {
		o.seed = time.Now().UnixNano() % 1_000_000_000
	}
	passed := 0
	for deadline := time.Now().Add(time.Duration(o.minutes * float64(time.Minute))); ; o.seed++ {
		if inTurn {
			o.security = securities[passed%len(securities)]
		}
		if !once(o) {
			fmt.Printf("%d passed, 1 failed\n", passed)
			os.Exit(1)
		}
		if passed++; time.Now().After(deadline) {
			break
		}
	}
	fmt.Printf("%d passed, 0 failed\n", passed)
}

// once is one run; it says what it finds.
func once(o options) bool {
	directory, err := os.MkdirTemp("", "duramen-chaos-")
	if err != nil {
		panic(err)
	}
	fmt.Printf("seed %d, %s, %s, %s\n", o.seed, o.length, o.security, directory)
	wrong := run(o, directory)
	if len(wrong) == 0 && !o.keep {
		os.RemoveAll(directory)
	}
	for _, sentence := range wrong {
		fmt.Printf("WRONG %s\n", sentence)
	}
	if len(wrong) > 0 {
		again := fmt.Sprintf("chaos/run.sh --seed %d --length %s --security %s", o.seed, o.length, o.security)
		if o.faults != "" {
			again += " --faults '" + o.faults + "'"
		}
		if o.other != "" {
			again += " --other " + o.other
		}
		if o.strict {
			again += " --strict"
		}
		fmt.Printf("kept: %s\nseed: %d\ncommand: %s\n", directory, o.seed, again)
	}
	return len(wrong) == 0
}

func run(o options, directory string) (wrong []string) {
	say := func(err error) []string { return append(wrong, err.Error()) }
	packets := NewPackets()
	login = nil
	if o.security == Closed {
		var err error
		if login, err = newLogin(directory); err != nil {
			return say(err)
		}
	}
	cluster, err := NewCluster(o, directory, packets)
	if err != nil {
		return say(err)
	}
	defer cluster.Close()
	if cluster.Authority != nil {
		cluster.Authority.Swap()
		defer cluster.Authority.Stop()
	}
	defer func() {
		if len(wrong) > 0 || o.keep {
			keepData(cluster, directory)
		}
	}()
	faults, err := possible(o.faults, cluster)
	if err != nil {
		return say(err)
	}
	chance := rand.New(rand.NewSource(o.seed))
	if err := form(cluster, chance); err != nil {
		return say(err)
	}
	topicID, err := createTopic(cluster)
	if err != nil {
		return say(err)
	}
	if o.security == Rolling {
		if err := cluster.awaitPlain(nodes-1, formsWithin); err != nil {
			return say(fmt.Errorf("at the beginning all nodes should speak without TLS: %w", err))
		}
	}
	history, err := NewHistory(filepath.Join(directory, "history.jsonl"))
	if err != nil {
		return say(err)
	}
	clients, err := StartClients(cluster.Bootstrap(), history, topicID, o.python, filepath.Join(directory, "librdkafka.log"))
	if err != nil {
		return say(err)
	}
	if err := clients.StartFast(o.binary, directory, 2); err != nil {
		return say(err)
	}
	group, err := StartGroup(cluster.Bootstrap())
	if err != nil {
		return say(err)
	}
	queues, err := createQueues(cluster.Natives())
	if err != nil {
		return say(err)
	}
	clients.StartQueueing(cluster.Natives(), queues)
	work, err := StartWork(cluster, history)
	if err != nil {
		return say(err)
	}
	rolled := make(chan error, 1)
	go func() {
		var err error
		if o.security == Rolling {
			err = cluster.Roll(o.seed, o.length)
		}
		rolled <- err
	}()
	wrong = append(wrong, suffer(cluster, NewSchedule(o.seed, o.length, faults))...)
	if err := <-rolled; err != nil {
		wrong = append(wrong, err.Error())
	}
	over := now()
	wrong = append(wrong, progress(cluster, history)...)
	wrong = append(wrong, clients.Finish()...)
	workEnds, undone := work.Finish(over)
	wrong = append(wrong, undone...)
	ends, err := endQueues(cluster, history, queues)
	if err != nil {
		wrong = say(err)
	}
	difference, err := awaitIdentical(cluster, identicalWithin)
	if err != nil {
		wrong = say(err)
	} else if difference != "" {
		wrong = append(wrong, fmt.Sprintf("%s after all faults replicas differ: %s", identicalWithin, difference))
	}
	logs, err := readLogs(cluster)
	if err != nil {
		wrong = say(err)
	}
	wrong = append(wrong, group.Finish(logs)...)
	if cluster.Authority != nil {
		wrong = append(wrong, cluster.Sealed()...)
	}
	for _, node := range cluster.Nodes {
		wrong = append(wrong, node.Unasked()...)
	}
	ops, queued, worked, err := history.Close()
	if err != nil {
		return say(err)
	}
	began := time.Now()
	wrong = append(wrong, Check(ops, logs, Ordered)...)
	wrong = append(wrong, CheckQueues(queued, ends)...)
	wrongWork, repeated := CheckWork(worked, workEnds, o.strict)
	wrong = append(wrong, wrongWork...)
	acknowledged, early := summary(ops)
	edited := summaryOfQueues(queued)
	accepted := summaryOfWork(worked, workEnds, repeated)
	fmt.Printf("checked in %s\n", time.Since(began).Round(time.Millisecond))
	if acknowledged < acknowledgedMin {
		wrong = append(wrong, fmt.Sprintf("%d appends were acknowledged, so little was tested", acknowledged))
	}
	// Nodes of an earlier build know no fast appends.
	if early == 0 && o.other == "" {
		wrong = append(wrong, "no fast append was acknowledged before its commit, so none was tested")
	}
	if edited < editedMin {
		wrong = append(wrong, fmt.Sprintf("%d changes of queues were acknowledged, so little was tested", edited))
	}
	if accepted < acceptedMin {
		wrong = append(wrong, fmt.Sprintf("%d messages of work queues were accepted, so little was tested", accepted))
	}
	return wrong
}

// possible says what cannot be done here, so that nobody takes it for done.
func possible(wanted string, cluster *Cluster) (map[Fault]bool, error) {
	faults := make(map[Fault]bool)
	for _, it := range weights {
		faults[it.Fault] = wanted == ""
	}
	for _, name := range strings.FieldsFunc(wanted, func(r rune) bool { return r == ',' }) {
		if _, known := faults[Fault(name)]; !known {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
		faults[Fault(name)] = true
	}
	disk := cluster.Nodes[0].Disk
	fmt.Printf("disks: %s\n", disk.Kind)
	if !disk.CanFill {
		fmt.Println("SKIP full disks: mounting one takes root, or user namespaces")
		delete(faults, Full)
		delete(faults, KillOnFull)
	}
	if !cluster.Packets.isThere {
		fmt.Println("SKIP lost packets: that takes nft and root, or user namespaces; cuts let connections stand still instead")
		delete(faults, Lossy)
		delete(faults, Vanish)
	}
	for fault, is := range faults {
		if is && fault != "" {
			return faults, nil
		}
	}
	return nil, errors.New("no fault is left that is possible here")
}

// form starts nodes with empty disks and kills them while they become one cluster.
func form(cluster *Cluster, chance *rand.Rand) error {
	for range 3 {
		for _, index := range chance.Perm(nodes) {
			if err := cluster.Nodes[index].Start(); err != nil {
				return err
			}
			time.Sleep(time.Duration(chance.Int63n(int64(120 * time.Millisecond))))
		}
		time.Sleep(time.Duration(chance.Int63n(int64(200 * time.Millisecond))))
		for _, index := range chance.Perm(nodes)[:1+chance.Intn(nodes)] {
			cluster.Nodes[index].Kill()
		}
	}
	return cluster.Heal()
}

// createTopic waits until the cluster is formed, and all its nodes are known.
func createTopic(cluster *Cluster) ([16]byte, error) {
	client, err := newClient(cluster.Bootstrap())
	if err != nil {
		return [16]byte{}, err
	}
	defer client.Close()
	began := time.Now()
	var last error
	for time.Since(began) < formsWithin {
		id, err := tryToCreate(client)
		if err == nil {
			fmt.Printf("formed, with a topic, after %s\n", time.Since(began).Round(10*time.Millisecond))
			return id, nil
		}
		last = err
		time.Sleep(100 * time.Millisecond)
	}
	return [16]byte{}, fmt.Errorf("no cluster with a topic within %s: %w", formsWithin, last)
}

func setting(name, value string) kmsg.CreateTopicsRequestTopicConfig {
	config := kmsg.NewCreateTopicsRequestTopicConfig()
	config.Name, config.Value = name, &value
	return config
}

func tryToCreate(client *kgo.Client) (id [16]byte, err error) {
	context, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	known, err := kmsg.NewPtrMetadataRequest().RequestWith(context, client)
	if err != nil {
		return id, err
	}
	if len(known.Brokers) != nodes {
		return id, fmt.Errorf("%d nodes are known", len(known.Brokers))
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = topic, partitions, nodes
	wanted.Configs = append(wanted.Configs, setting("fast.append.enable", "true"))
	request.Topics = append(request.Topics, wanted)
	request.TimeoutMillis = 4000
	response, err := request.RequestWith(context, client)
	if err != nil {
		return id, err
	}
	told := kerr.ErrorForCode(response.Topics[0].ErrorCode)
	if told != nil && !errors.Is(told, kerr.TopicAlreadyExists) {
		return id, told
	}
	described, err := describe(context, client, topic)
	if err != nil {
		return id, err
	}
	for _, partition := range described.Partitions {
		if partition.Leader < 0 {
			return id, fmt.Errorf("partition %d has no leader yet", partition.Partition)
		}
	}
	return described.TopicID, nil
}

func describe(context context.Context, client *kgo.Client, topic string) (kmsg.MetadataResponseTopic, error) {
	request := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(context, client)
	if err != nil {
		return kmsg.MetadataResponseTopic{}, err
	}
	return response.Topics[0], kerr.ErrorForCode(response.Topics[0].ErrorCode)
}

// suffer carries out a schedule.
func suffer(cluster *Cluster, steps []Step) (wrong []string) {
	client, err := newClient(cluster.Bootstrap())
	if err != nil {
		return []string{err.Error()}
	}
	defer client.Close()
	began := time.Now()
	var running sync.WaitGroup
	var mutex sync.Mutex
	for _, step := range steps {
		time.Sleep(time.Until(began.Add(step.At)))
		running.Add(1)
		go func() {
			defer running.Done()
			victim := find(cluster, client, step.Victim)
			fmt.Printf("%6.2f s  %s for %.1f s: node %d (%s)\n", time.Since(began).Seconds(), step.Fault, step.Length.Seconds(),
				victim.ID, step.Victim)
			if err := cluster.Apply(context.Background(), step, victim); err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				wrong = append(wrong, fmt.Sprintf("%s could not be done: %v", step.Fault, err))
			}
		}()
	}
	running.Wait()
	if err := cluster.Heal(); err != nil {
		wrong = append(wrong, err.Error())
	}
	fmt.Printf("%6.2f s  all faults are over\n", time.Since(began).Seconds())
	return wrong
}

// find returns the node that is meant. If nobody says who leads, it is as good as any other.
func find(cluster *Cluster, client *kgo.Client, victim Victim) *Node {
	if victim.Node > 0 {
		return cluster.Nodes[victim.Node-1]
	}
	context, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	described, err := describe(context, client, topic)
	if err == nil {
		for _, partition := range described.Partitions {
			if partition.Partition == victim.LeaderOf && partition.Leader > 0 {
				return cluster.Nodes[partition.Leader-1]
			}
		}
	}
	return cluster.Nodes[int(victim.LeaderOf)%nodes]
}

// progress demands an append to each partition, soon.
func progress(cluster *Cluster, history *History) (wrong []string) {
	probe := &Clients{bootstrap: cluster.Bootstrap(), history: history, stop: make(chan struct{})}
	client, err := newClient(probe.bootstrap)
	if err != nil {
		return []string{err.Error()}
	}
	defer client.Close()
	began := time.Now()
	context, cancel := context.WithTimeout(context.Background(), appendsWithin)
	defer cancel()
	var all sync.WaitGroup
	var mutex sync.Mutex
	for partition := range int32(partitions) {
		op := Op{Client: "probe", Kind: Append, Partition: partition, Value: fmt.Sprintf("probe:%d", partition), Call: now()}
		record := &kgo.Record{Topic: topic, Partition: partition, Key: []byte(op.Value), Value: valueOf(op.Value)}
		all.Add(1)
		client.Produce(context, record, func(record *kgo.Record, err error) {
			defer all.Done()
			op.Offset = record.Offset
			probe.note(op, err)
			if err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				wrong = append(wrong, fmt.Sprintf("partition %d takes no append within %s after all faults: %v", partition, appendsWithin, err))
			}
		})
	}
	all.Wait()
	fmt.Printf("all partitions took an append within %s\n", time.Since(began).Round(time.Millisecond))
	return wrong
}

// readLogs reads every partition through, from its beginning to its end.
func readLogs(cluster *Cluster) (map[int32]Log, error) {
	context, cancel := context.WithTimeout(context.Background(), readsWithin)
	defer cancel()
	logs := make(map[int32]Log)
	for partition := range int32(partitions) {
		log, err := readLog(context, cluster, partition)
		if err != nil {
			return logs, err
		}
		logs[partition] = log
	}
	return logs, nil
}

func readLog(context context.Context, cluster *Cluster, partition int32) (Log, error) {
	from := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(0)}}
	client, err := newClient(cluster.Bootstrap(), kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	end := int64(-1)
	for _, node := range cluster.Nodes {
		asked, err := newClient(cluster.Bootstrap()[node.ID-1 : node.ID])
		if err != nil {
			return nil, err
		}
		told, err := endOf(context, asked, partition)
		asked.Close()
		if err == nil {
			end = told
		}
	}
	if end < 0 {
		return nil, fmt.Errorf("no node says where partition %d ends", partition)
	}
	log := Log{}
	for int64(len(log)) < end {
		fetches := client.PollFetches(context)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("reading partition %d at %d of %d: %w", partition, len(log), end, err)
		}
		var failed error
		fetches.EachError(func(_ string, _ int32, err error) { failed = err })
		if failed != nil {
			return nil, fmt.Errorf("reading partition %d at %d of %d: %w", partition, len(log), end, failed)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if record.Offset != int64(len(log)) && failed == nil {
				failed = fmt.Errorf("partition %d: offset %d where %d should be", partition, record.Offset, len(log))
			}
			log = append(log, nameOf(record.Key, record.Value))
		})
		if failed != nil {
			return nil, failed
		}
	}
	return log, nil
}

var addresses = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+`)

// summary says how much was done, so that one sees what a run is worth. It returns how many appends were acknowledged, and how
// many of them before their commit.
func summary(ops []Op) (int, int) {
	count := make(map[string]int)
	told := make(map[string]int)
	for _, op := range ops {
		count[string(op.Kind)+" "+string(op.Outcome)]++
		if strings.HasPrefix(op.Client, "fast-") && op.Outcome == OK {
			count["fast"]++
			if op.Offset == Untold {
				count["fast untold"]++
			}
		}
		if op.Error != "" {
			told[addresses.ReplaceAllString(op.Error, "…")]++
		}
	}
	fmt.Printf("%d operations: %d appends acknowledged, %d unknown, %d refused; %d reads, %d ends\n", len(ops),
		count["append ok"], count["append unknown"], count["append fail"], count["read ok"], count["end ok"])
	fmt.Printf("  of these %d fast appends were acknowledged, %d before their commit\n", count["fast"], count["fast untold"])
	for message, times := range told {
		fmt.Printf("  %d times: %s\n", times, message)
	}
	return count["append ok"], count["fast untold"]
}

// summaryOfQueues returns how many changes of queues were acknowledged.
func summaryOfQueues(ops []QueueOp) (changes int) {
	count := make(map[QueueKind]map[Outcome]int)
	errs := make(map[string]int)
	for _, op := range ops {
		if count[op.Kind] == nil {
			count[op.Kind] = make(map[Outcome]int)
		}
		count[op.Kind][op.Outcome]++
		if op.Kind != Retrieve && op.Kind != AskFence && op.Outcome == OK {
			changes++
		}
		if op.Error != "" {
			errs[fmt.Sprintf("%s (%s): %s", op.Kind, op.Outcome, addresses.ReplaceAllString(op.Error, "…"))]++
		}
	}
	fmt.Printf("%d operations on queues, acknowledged, unknown and refused:", len(ops))
	for _, kind := range []QueueKind{Enqueue, Delete, Replace, Rewrite, Trim, Fence, AskFence, Retrieve} {
		fmt.Printf(" %s %d, %d, %d;", kind, count[kind][OK], count[kind][Unknown], count[kind][Fail])
	}
	fmt.Println()
	for message, times := range errs {
		fmt.Printf("  %d times: %s\n", times, message)
	}
	return changes
}

// keepData moves what is in mounts that go away to where it stays.
func keepData(cluster *Cluster, directory string) {
	for _, node := range cluster.Nodes {
		node.Kill()
		if node.Disk.CanFill {
			if err := os.CopyFS(filepath.Join(directory, fmt.Sprintf("data-%d", node.ID)), os.DirFS(node.dataDir())); err != nil {
				fmt.Printf("the data of node %d is not kept: %v\n", node.ID, err)
			}
		}
	}
}
