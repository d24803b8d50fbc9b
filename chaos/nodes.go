package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	nodes     = 3
	stopGrace = 15 * time.Second
)

// Node is one `duramen serve`.
type Node struct {
	ID     int
	Disk   *Disk
	listen string // for clients
	native string // for clients of the native API, and for nodes that pass their calls on
	peers  string // for other nodes, behind the links

	incoming map[int]*Link // from each other node
	command  []string      // as it is started
	mode     string        // node.security, where nodes have certificates
	sealing  func(mode string) []string
	other    string // the build of every second start, if it is another one
	begun    int
	replaces bool // the place of a disk that was lost
	log      string
	starts   chan<- func()

	mutex   sync.Mutex
	process *exec.Cmd
	ended   chan struct{}
	// What it ended with when nobody asked it to.
	unasked []string
	asked   bool
}

// Cluster is three nodes and the ways between them.
type Cluster struct {
	Nodes   []*Node
	Packets *Packets
	// Of the nodes' certificates, unless the run is open.
	Authority *Authority
	links     []*Link
	starts    chan func()
	// One disk is lost at a time.
	wiping sync.Mutex
}

func NewCluster(o options, directory string, packets *Packets) (*Cluster, error) {
	binary, other := o.binary, o.other
	cluster := &Cluster{Packets: packets, starts: make(chan func())}
	if o.security != Open {
		var err error
		if cluster.Authority, err = NewAuthority(binary, directory); err != nil {
			return nil, err
		}
	}
	// A process that is to die with its parent dies with the thread that started it; so one thread starts all, and stays.
	go func() {
		runtime.LockOSThread()
		for start := range cluster.starts {
			start()
		}
	}()
	for id := 1; id <= nodes; id++ {
		disk, err := NewDisk(directory, id)
		if err != nil {
			return nil, err
		}
		node := &Node{ID: id, Disk: disk, listen: freeAddress(clientsIP(id)), native: freeAddress(clientsIP(id)), peers: freeAddress("127.0.0.1"), starts: cluster.starts, other: other,
			incoming: make(map[int]*Link), log: filepath.Join(directory, fmt.Sprintf("node-%d.log", id))}
		for from := 1; from <= nodes; from++ {
			if from != id {
				if node.incoming[from], err = cluster.link(linkIP(from, id), node.peers); err != nil {
					return nil, err
				}
			}
		}
		cluster.Nodes = append(cluster.Nodes, node)
	}
	for _, node := range cluster.Nodes {
		// Each is told other addresses for the same nodes: the links that are its own.
		var voters []string
		for _, other := range cluster.Nodes {
			address := other.peers
			if other != node {
				address = other.incoming[node.ID].Address()
			}
			voters = append(voters, fmt.Sprintf("%d@%s", other.ID, address))
		}
		node.command = []string{binary, "serve", "--data-dir", node.dataDir(), "--native", node.native, "--node-listen", node.peers}
		settings := []string{
			"node.id=" + strconv.Itoa(node.ID),
			"controller.quorum.voters=" + strings.Join(voters, ","),
			"default.replication.factor=3", "min.insync.replicas=2",
			// Small: many rolls, and little that must be free.
			"log.segment.bytes=262144", "queued.max.request.bytes=16777216",
			// So that leases may be short.
			"group.share.min.record.lock.duration.ms=1000",
		}
		if login == nil {
			node.command = append(node.command, "--listen", node.listen)
		} else {
			own, err := login.listeners(directory, node.listen)
			if err != nil {
				return nil, err
			}
			settings = append(settings, own...)
		}
		node.command = append(node.command, set(settings)...)
		if o.security != Open {
			node.mode = "tls"
			node.sealing = func(mode string) []string { return set(cluster.Authority.settings(node.ID, mode)) }
		}
		if o.security == Rolling {
			node.mode = "plain"
		}
	}
	return cluster, nil
}

func set(settings []string) (words []string) {
	for _, setting := range settings {
		words = append(words, "--set", setting)
	}
	return words
}

// Where a node dials another one.
func linkIP(from, to int) string { return fmt.Sprintf("127.1.%d.%d", from, to) }

func (c *Cluster) link(ip, target string) (*Link, error) {
	link, err := NewLink(ip, target)
	c.links = append(c.links, link)
	return link, err
}

// Where clients reach a node, with no link between: who dials a dead node is refused.
func clientsIP(id int) string { return fmt.Sprintf("127.2.0.%d", id) }

// A port below the ephemeral range: no outgoing connection takes it while a killed node is down.
func freeAddress(ip string) string {
	for {
		port := 20_000 + rand.Intn(12_000)
		if probe, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port))); err == nil {
			probe.Close()
			return probe.Addr().String()
		}
	}
}

func (n *Node) dataDir() string { return filepath.Join(n.Disk.Root, "data") }

// Start starts the process, unless it runs.
func (n *Node) Start() error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.process != nil {
		return nil
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	binary, arguments := n.command[0], slices.Clone(n.command[1:])
	if n.mode != "" {
		arguments = append(arguments, n.sealing(n.mode)...)
	}
	if n.replaces {
		// Its disk was lost. The other binary may not know how to ask for the place of the one before.
		arguments = append(arguments, "--replace")
	} else if n.other != "" && n.begun%2 == 1 {
		binary = n.other
	}
	n.begun++
	process := exec.Command(binary, arguments...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "DURAMEN_") {
			process.Env = append(process.Env, variable)
		}
	}
	started := make(chan error)
	n.starts <- func() { started <- process.Start() }
	if err := <-started; err != nil {
		return err
	}
	n.process, n.ended, n.asked = process, make(chan struct{}), false
	go n.watch(process, n.ended)
	return nil
}

func (n *Node) watch(process *exec.Cmd, ended chan struct{}) {
	err := process.Wait()
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if !n.asked {
		n.unasked = append(n.unasked, fmt.Sprintf("node %d ended unasked: %v; see %s", n.ID, err, n.log))
	}
	n.process = nil
	close(ended)
}

// Kill ends the process at this instant, and waits until it is gone.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

// Stop asks the process to end, and waits.
func (n *Node) Stop() {
	ended := n.signal(syscall.SIGTERM, true)
	select {
	case <-ended:
	case <-time.After(stopGrace):
		n.mutex.Lock()
		n.unasked = append(n.unasked, fmt.Sprintf("node %d did not end within %s of SIGTERM", n.ID, stopGrace))
		n.mutex.Unlock()
		n.Kill()
	}
}

func (n *Node) end(signal syscall.Signal) { <-n.signal(signal, true) }

func (n *Node) Freeze() { n.signal(syscall.SIGSTOP, false) }
func (n *Node) Thaw()   { n.signal(syscall.SIGCONT, false) }

// signal returns what is closed when the process is gone.
func (n *Node) signal(signal syscall.Signal, ends bool) <-chan struct{} {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.process == nil {
		gone := make(chan struct{})
		close(gone)
		return gone
	}
	n.asked = n.asked || ends
	n.process.Process.Signal(signal)
	return n.ended
}

// Unasked is how it ended when nobody wanted it to.
func (n *Node) Unasked() []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.unasked
}

// Close ends everything and gives the machine back what was its.
func (c *Cluster) Close() {
	for _, node := range c.Nodes {
		node.Kill()
		node.Disk.Close()
	}
	for _, link := range c.links {
		link.Close()
	}
}

// Bootstrap is where clients begin.
func (c *Cluster) Bootstrap() []string {
	var addresses []string
	for _, node := range c.Nodes {
		addresses = append(addresses, node.listen)
	}
	return addresses
}

// Natives is where clients of the native API reach the nodes.
func (c *Cluster) Natives() []string {
	var addresses []string
	for _, node := range c.Nodes {
		addresses = append(addresses, node.native)
	}
	return addresses
}

func (c *Cluster) others(of *Node) []*Node {
	var others []*Node
	for beyond := 1; beyond < nodes; beyond++ {
		others = append(others, c.Nodes[(of.ID-1+beyond)%nodes])
	}
	return others
}

// Apply lets a step begin, waits its length, and ends it. What is chosen only now, the leader of a partition, was resolved.
func (c *Cluster) Apply(ctx context.Context, step Step, victim *Node) error {
	others := c.others(victim)
	other := others[step.Beyond-1]
	wait := func() {
		select {
		case <-ctx.Done():
		case <-time.After(step.Length):
		}
	}
	switch step.Fault {
	case Kill:
		victim.Kill()
		wait()
		return victim.Start()
	case KillTwice:
		victim.Kill()
		wait()
		err := victim.Start()
		time.Sleep(step.Delay)
		victim.Kill()
		return errors.Join(err, victim.Start())
	case KillAll:
		for _, node := range c.Nodes {
			node.Kill()
		}
		wait()
		var errs []error
		for _, node := range c.Nodes {
			errs = append(errs, node.Start())
			time.Sleep(step.Delay)
		}
		return errors.Join(errs...)
	case Stop:
		victim.Stop()
		wait()
		return victim.Start()
	case Freeze:
		victim.Freeze()
		wait()
		victim.Thaw()
		return nil
	case Isolate, Vanish:
		return c.cut(wait, both(victim, others...), both(victim, others...), step.Fault == Vanish, victim)
	case Cut:
		return c.cut(wait, both(victim, other), both(victim, other), false, victim)
	case Mute:
		return c.cut(wait, ways(victim, others...), ways(victim, others...), false, victim)
	case Deaf:
		return c.cut(wait, waysTo(victim, others...), waysTo(victim, others...), false, victim)
	case OneWay:
		return c.cut(wait, ways(victim, other), waysTo(victim, other), false, victim)
	case Slow:
		ways := both(victim, others...)
		for _, link := range ways {
			link.Delay(step.Delay)
		}
		wait()
		for _, link := range ways {
			link.Delay(0)
		}
		return nil
	case Lossy:
		return c.lose(wait, ips(both(victim, others...)))
	case Full, KillOnFull:
		// A directory that is being made needs its room: a start without it ends, as it should.
		if _, err := os.Stat(filepath.Join(victim.dataDir(), "journal", "mark")); err != nil {
			fmt.Printf("          node %d has no journal yet: its disk stays as it is\n", victim.ID)
			wait()
			return nil
		}
		return fill(wait, victim, step)
	case Wipe:
		return c.wipe(wait, victim)
	}
	return fmt.Errorf("there is no fault %q", step.Fault)
}

// fill takes the room of a node's disk for a while, and kills and starts the node meanwhile if the step says so.
func fill(wait func(), victim *Node, step Step) error {
	err := victim.Disk.Fill(step.Left)
	if step.Fault == KillOnFull {
		time.Sleep(step.Length / 3)
		victim.Kill()
		err = errors.Join(err, victim.Start())
		time.Sleep(step.Length * 2 / 3)
	} else {
		wait()
	}
	return errors.Join(err, victim.Disk.Free())
}

// wipe takes a node's disk away. Two lost before the first is replaced are a majority of it, so it waits until the cluster is
// whole; if that is not soon, it does nothing.
func (c *Cluster) wipe(wait func(), victim *Node) error {
	c.wiping.Lock()
	defer c.wiping.Unlock()
	var why error
	for deadline := time.Now().Add(wholeWithin); ; time.Sleep(200 * time.Millisecond) {
		if why = whole(c); why == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Printf("          node %d keeps its disk: %v\n", victim.ID, why)
			return nil
		}
	}
	victim.Kill()
	victim.mutex.Lock()
	victim.replaces = true
	victim.mutex.Unlock()
	err := os.RemoveAll(victim.dataDir())
	fmt.Printf("          node %d has lost its disk\n", victim.ID)
	wait()
	return errors.Join(err, victim.Start())
}

// Where a node's words to others travel.
func ways(from *Node, to ...*Node) []*Link {
	var links []*Link
	for _, node := range to {
		links = append(links, node.incoming[from.ID])
	}
	return links
}

// Where others' words to a node travel.
func waysTo(to *Node, from ...*Node) []*Link {
	var links []*Link
	for _, node := range from {
		links = append(links, to.incoming[node.ID])
	}
	return links
}

func both(node *Node, others ...*Node) []*Link {
	return append(ways(node, others...), waysTo(node, others...)...)
}

// cut drops packets to the addresses of some links, and from those of others, as long as `wait` takes; also those to and
// from a node's clients, if it is to vanish.
func (c *Cluster) cut(wait func(), to, from []*Link, vanishes bool, node *Node) error {
	if !c.Packets.isThere {
		for _, link := range to {
			link.Stall(true)
		}
		wait()
		for _, link := range to {
			link.Stall(false)
		}
		return nil
	}
	toIPs, fromIPs := ips(to), ips(from)
	if vanishes {
		toIPs, fromIPs = append(toIPs, clientsIP(node.ID)), append(fromIPs, clientsIP(node.ID))
	}
	errs := []error{c.Packets.Add("to", toIPs), c.Packets.Add("from", fromIPs)}
	wait()
	errs = append(errs, c.Packets.Remove("to", toIPs), c.Packets.Remove("from", fromIPs))
	return errors.Join(errs...)
}

// lose is only for where packets can be dropped.
func (c *Cluster) lose(wait func(), ips []string) error {
	err := c.Packets.Add("lossy", ips)
	wait()
	return errors.Join(err, c.Packets.Remove("lossy", ips))
}

func ips(links []*Link) []string {
	var ips []string
	for _, link := range links {
		ips = append(ips, link.IP)
	}
	return ips
}

// Heal makes sure that nothing is left of faults, all of which have ended.
func (c *Cluster) Heal() error {
	var errs []error
	for _, link := range c.links {
		link.Delay(0)
		link.Stall(false)
	}
	for _, node := range c.Nodes {
		node.Thaw()
		errs = append(errs, node.Disk.Free(), node.Start())
	}
	return errors.Join(errs...)
}
