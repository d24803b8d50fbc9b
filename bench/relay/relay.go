package main

import (
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	// What one direction of a connection may have under way. A wire of 25 ms has that much at 640 MB/s.
	heldMax = 16 << 20
	// How much a metered wire takes before it is sent: more would wait here instead of at the sender.
	wireAhead = 5 * time.Millisecond
	// A target whose queue of connections is full counts as gone after this.
	connectMicroseconds = 500_000
	epollPwait2         = 441
	// Read at once.
	pieceBytes = 64 << 10
)

// relay is one thread that reads pieces, and writes each when it is due. The timers of Go's event loop round to a
// millisecond, so the thread waits in epoll_pwait2, whose time is in nanoseconds, and with the least slack of timers.
type relay struct {
	epoll   int
	links   []*link
	doors   map[int]*link
	ends    map[int]*end
	ways    []*way
	buffer  []byte
	meter   wire
	events  [64]syscall.EpollEvent
	nowBase time.Time
}

// link is the way from whoever dials an address to a target.
type link struct {
	target    syscall.SockaddrInet4
	delay     atomic.Int64 // nanoseconds
	isMetered bool
}

// wire carries a number of bytes a second, those of several ways one after the other.
type wire struct {
	rate   atomic.Int64 // 0 is any number
	freeAt time.Duration
}

// end is one socket of a connection, which one way reads and the other writes.
type end struct {
	file    int
	in, out *way
	asked   uint32 // events
}

// way is one direction of a connection.
type way struct {
	link      *link
	from, to  *end
	back      *way
	isMetered bool
	pieces    []piece
	held      int
	isEnded   bool // nothing more is read
	isBlocked bool // the socket takes no more
	isClosed  bool
}

// piece is what was read at once; the last of a way has no bytes.
type piece struct {
	bytes []byte
	due   time.Duration
}

func newRelay(rate int64) (*relay, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	made := &relay{epoll: epoll, doors: make(map[int]*link), ends: make(map[int]*end), buffer: make([]byte, pieceBytes), nowBase: time.Now()}
	made.meter.rate.Store(rate)
	return made, nil
}

// listen begins a link before the relay runs, and returns its address.
func (r *relay) listen(from, target string, delay time.Duration, isMetered bool) (string, error) {
	listener, err := net.Listen("tcp4", from)
	if err != nil {
		return "", err
	}
	file, err := listener.(*net.TCPListener).File() // another descriptor of the socket, which is ours
	if err != nil {
		return "", err
	}
	listener.Close()
	address, err := net.ResolveTCPAddr("tcp4", target)
	if err != nil {
		return "", err
	}
	made := &link{isMetered: isMetered}
	made.target = syscall.SockaddrInet4{Port: address.Port, Addr: [4]byte(address.IP.To4())}
	made.delay.Store(int64(delay))
	door, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return "", err
	}
	file.Close()
	if err := syscall.SetNonblock(door, true); err != nil {
		return "", err
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(door)}
	if err := syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, door, &event); err != nil {
		return "", err
	}
	r.links = append(r.links, made)
	r.doors[door] = made
	return listener.Addr().String(), nil
}

// delay changes how late a link is from now on. What is read later arrives no earlier than what was read before.
func (r *relay) delay(number int, delay time.Duration) error {
	if number < 0 || number >= len(r.links) || delay < 0 {
		return fmt.Errorf("there is no link %d with a delay of %s", number, delay)
	}
	r.links[number].delay.Store(int64(delay))
	return nil
}

// run forwards until it fails.
func (r *relay) run() error {
	runtime.LockOSThread()
	// One nanosecond of slack: the default of 50 µs would be a part of each delay.
	if _, _, code := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_TIMERSLACK, 1, 0); code != 0 {
		return code
	}
	// A network waits for no core. Only root may ask for that, so without it the relay is later at times.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, -10)
	for {
		count, err := r.wait(r.deliver())
		if err != nil {
			return err
		}
		for _, event := range r.events[:count] {
			r.serve(int(event.Fd), event.Events)
		}
	}
}

func (r *relay) now() time.Duration { return time.Since(r.nowBase) }

// wait returns the number of events, none if `until` comes first.
func (r *relay) wait(until time.Duration) (int, error) {
	var limit *syscall.Timespec
	if until >= 0 {
		time := syscall.NsecToTimespec(max(0, int64(until-r.now())))
		limit = &time
	}
	count, _, code := syscall.Syscall6(epollPwait2, uintptr(r.epoll), uintptr(unsafe.Pointer(&r.events[0])),
		uintptr(len(r.events)), uintptr(unsafe.Pointer(limit)), 0, 0)
	switch code {
	case 0:
		return int(count), nil
	case syscall.EINTR:
		return 0, nil
	}
	return 0, fmt.Errorf("epoll_pwait2: %w", code)
}

func (r *relay) serve(file int, events uint32) {
	if link := r.doors[file]; link != nil {
		r.accept(file, link)
		return
	}
	end := r.ends[file]
	if end == nil {
		return // closed by an event before this one
	}
	if events&^syscall.EPOLLOUT != 0 {
		r.read(end.in)
	}
	if events&syscall.EPOLLOUT != 0 {
		end.out.isBlocked = false
	}
}

// accept joins a dialler to the target. If that is gone, the dialler hears a reset: as near as it gets to
// being refused.
func (r *relay) accept(door int, link *link) {
	dialler, _, err := syscall.Accept4(door, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	target, err := dial(&link.target)
	if err != nil {
		syscall.SetsockoptLinger(dialler, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
		syscall.Close(dialler)
		return
	}
	near, far := &end{file: dialler}, &end{file: target}
	there := &way{link: link, from: near, to: far, isMetered: link.isMetered}
	back := &way{link: link, from: far, to: near, back: there}
	there.back = back
	near.in, near.out, far.in, far.out = there, back, back, there
	for _, end := range []*end{near, far} {
		syscall.SetsockoptInt(end.file, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		r.ends[end.file] = end
	}
	r.ways = append(r.ways, there, back)
}

func dial(target *syscall.SockaddrInet4) (int, error) {
	file, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	syscall.SetsockoptTimeval(file, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{Usec: connectMicroseconds})
	if err := syscall.Connect(file, target); err != nil {
		syscall.Close(file)
		return -1, err
	}
	return file, syscall.SetNonblock(file, true)
}

// read takes what has arrived and gives it its time.
func (r *relay) read(way *way) {
	count, err := syscall.Read(way.from.file, r.buffer)
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return
	}
	due := r.now()
	way.isEnded = err != nil || count <= 0
	var bytes []byte
	if !way.isEnded {
		bytes = append(bytes, r.buffer[:count]...)
		if rate := r.meter.rate.Load(); way.isMetered && rate > 0 {
			r.meter.freeAt = max(r.meter.freeAt, due) + time.Duration(int64(count)*int64(time.Second)/rate)
			due = r.meter.freeAt
		}
	}
	due += time.Duration(way.link.delay.Load())
	if last := len(way.pieces) - 1; last >= 0 {
		due = max(due, way.pieces[last].due)
	}
	way.pieces = append(way.pieces, piece{bytes, due})
	way.held += len(bytes)
}

// deliver writes what is due, and returns when the next thing is; less than 0 is never.
func (r *relay) deliver() time.Duration {
	next := time.Duration(-1)
	earlier := func(due time.Duration) {
		if next < 0 || due < next {
			next = due
		}
	}
	now := r.now()
	isWireFull := r.meter.freeAt > now+wireAhead
	open := r.ways[:0]
	for _, way := range r.ways {
		for !way.isClosed && !way.isBlocked && len(way.pieces) > 0 && way.pieces[0].due <= now {
			r.write(way)
		}
		if !way.isClosed && !way.isBlocked && len(way.pieces) > 0 {
			earlier(way.pieces[0].due)
		}
	}
	for _, way := range r.ways {
		if way.isClosed {
			continue
		}
		open = append(open, way)
		waits := way.isMetered && isWireFull
		if waits {
			earlier(r.meter.freeAt - wireAhead)
		}
		r.ask(way.from, !way.isEnded && !waits && way.held < heldMax)
	}
	clear(r.ways[len(open):])
	r.ways = open
	return next
}

func (r *relay) write(way *way) {
	first := &way.pieces[0]
	if first.bytes == nil {
		r.close(way)
		return
	}
	count, err := syscall.Write(way.to.file, first.bytes)
	switch {
	case err == syscall.EAGAIN:
		way.isBlocked = true
	case err == syscall.EINTR:
	case err != nil:
		r.close(way)
	default:
		way.held -= count
		first.bytes = first.bytes[count:]
		if len(first.bytes) == 0 {
			way.pieces[0] = piece{}
			way.pieces = way.pieces[1:]
		}
	}
}

// close ends both directions: neither node nor client uses half a connection.
func (r *relay) close(one *way) {
	for _, way := range []*way{one, one.back} {
		way.isClosed = true
		delete(r.ends, way.from.file)
		syscall.Close(way.from.file)
	}
}

// ask lets the kernel tell of what is wanted of a socket. One of which nothing is wanted is taken out: its end would
// be told over and over.
func (r *relay) ask(end *end, wantsIn bool) {
	var wanted uint32
	if wantsIn {
		wanted |= syscall.EPOLLIN
	}
	if end.out.isBlocked {
		wanted |= syscall.EPOLLOUT
	}
	if wanted == end.asked {
		return
	}
	how := syscall.EPOLL_CTL_MOD
	if end.asked == 0 {
		how = syscall.EPOLL_CTL_ADD
	} else if wanted == 0 {
		how = syscall.EPOLL_CTL_DEL
	}
	event := syscall.EpollEvent{Events: wanted, Fd: int32(end.file)}
	syscall.EpollCtl(r.epoll, how, end.file, &event)
	end.asked = wanted
}
