package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Link is the way from one process to another. Whoever dials its address reaches the target, and all goes through here:
// late, if so told, or not at all.
type Link struct {
	IP     string
	target string
	accept net.Listener

	mutex   sync.Mutex
	changed *sync.Cond
	delay   time.Duration
	stalled bool
	open    map[net.Conn]bool
	closed  bool
}

func NewLink(ip, target string) (*Link, error) {
	accept, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, err
	}
	link := &Link{IP: ip, target: target, accept: accept, open: make(map[net.Conn]bool)}
	link.changed = sync.NewCond(&link.mutex)
	go link.serve()
	return link, nil
}

func (l *Link) Address() string { return l.accept.Addr().String() }

// Delay is how late everything arrives that is sent from now on.
func (l *Link) Delay(delay time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.delay = delay
}

// Stall lets nothing through, and closes nothing: a cut where packets cannot be dropped.
func (l *Link) Stall(stalled bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.stalled = stalled
	l.changed.Broadcast()
}

func (l *Link) Close() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.closed = true
	l.accept.Close()
	for connection := range l.open {
		connection.Close()
	}
	l.changed.Broadcast()
}

func (l *Link) serve() {
	for {
		dialler, err := l.accept.Accept()
		if err != nil {
			return
		}
		go l.join(dialler)
	}
}

// A dialler learns that nobody listens by its connection's end.
func (l *Link) join(dialler net.Conn) {
	defer dialler.Close()
	if !l.wait() {
		return
	}
	target, err := net.DialTimeout("tcp", l.target, 2*time.Second)
	if err != nil {
		dialler.(*net.TCPConn).SetLinger(0) // a reset, which is as near as it gets to being refused
		return
	}
	defer target.Close()
	if !l.hold(dialler, target) {
		return
	}
	defer l.release(dialler, target)
	ended := make(chan struct{}, 2)
	forward := func(to, from net.Conn) {
		l.forward(to, from)
		ended <- struct{}{}
	}
	go forward(target, dialler)
	go forward(dialler, target)
	<-ended // one half that ends takes the other with it: neither node nor client uses half a connection
}

func (l *Link) hold(connections ...net.Conn) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, connection := range connections {
		l.open[connection] = true
	}
	return !l.closed
}

func (l *Link) release(connections ...net.Conn) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, connection := range connections {
		delete(l.open, connection)
	}
}

// wait returns when the link lets something through, or false when it is closed.
func (l *Link) wait() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for l.stalled && !l.closed {
		l.changed.Wait()
	}
	return !l.closed
}

func (l *Link) late() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.delay
}

type piece struct {
	bytes []byte
	due   time.Time
}

// Reads on while earlier pieces are late, as a long wire does; up to a bound, as TCP does.
func (l *Link) forward(to, from net.Conn) {
	pieces := make(chan piece, 256)
	go func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 64<<10)
			count, err := from.Read(buffer)
			if count > 0 {
				pieces <- piece{buffer[:count], time.Now().Add(l.late())}
			}
			if err != nil {
				return
			}
		}
	}()
	var err error
	for piece := range pieces { // to its end, so that the reader above ends
		if err != nil {
			continue
		}
		time.Sleep(time.Until(piece.due))
		if !l.wait() {
			err = io.ErrClosedPipe
		} else {
			_, err = to.Write(piece.bytes)
		}
		if err != nil {
			from.Close()
		}
	}
}

// Packets drops packets by their address, in a network namespace of our own. Addresses are those of links, so whose packet
// it is can be told by them.
type Packets struct {
	isThere bool
	mutex   sync.Mutex
	// How many faults want a set to have an address.
	wanted map[string]int
}

const ruleset = `
table ip chaos {
  set to { type ipv4_addr; }
  set from { type ipv4_addr; }
  set lossy { type ipv4_addr; }
  chain arrives {
    type filter hook input priority 0; policy accept;
    ip daddr @to drop
    ip saddr @from drop
    ip daddr @lossy numgen random mod 10 0 drop
    ip saddr @lossy numgen random mod 10 0 drop
  }
}
`

// NewPackets finds out whether packets can be dropped here.
func NewPackets() *Packets {
	return &Packets{isThere: ownNamespace() && nft("-f", "-") == nil, wanted: make(map[string]int)}
}

func nft(arguments ...string) error {
	command := exec.Command("nft", arguments...)
	command.Stdin = strings.NewReader(ruleset)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nft %v: %w: %s", arguments, err, output)
	}
	return nil
}

// Add puts addresses into a set; Remove takes them out when nobody else wants them there.
func (p *Packets) Add(set string, ips []string) error    { return p.change("add", set, ips, 1) }
func (p *Packets) Remove(set string, ips []string) error { return p.change("delete", set, ips, -1) }

func (p *Packets) change(what, set string, ips []string, by int) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var changed []string
	for _, ip := range ips {
		key := set + " " + ip
		was := p.wanted[key]
		p.wanted[key] += by
		if was == 0 || p.wanted[key] == 0 {
			changed = append(changed, ip)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return nft(what, "element", "ip", "chaos", set, "{", strings.Join(changed, ","), "}")
}
