package main

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// echo serves connections that answer with what they get.
func echo(t *testing.T) string {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(connection, connection)
				connection.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func dialRelay(t *testing.T, rate int64, delay time.Duration) (*relay, net.Conn) {
	relay, err := newRelay(rate)
	if err != nil {
		t.Fatal(err)
	}
	address, err := relay.listen("127.0.0.1:0", echo(t), delay, true)
	if err != nil {
		t.Fatal(err)
	}
	go relay.run()
	connection, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return relay, connection
}

func send(t *testing.T, connection net.Conn, first, last uint64) {
	for number := first; number < last; number++ {
		if err := binary.Write(connection, binary.BigEndian, number); err != nil {
			t.Error(err)
		}
	}
}

func expect(t *testing.T, connection net.Conn, first, last uint64) {
	for number := first; number < last; number++ {
		var got uint64
		if err := binary.Read(connection, binary.BigEndian, &got); err != nil || got != number {
			t.Fatalf("got %d and %v, not %d", got, err, number)
		}
	}
}

func TestBytesArriveInOrderAndNoEarlierThanTheDelay(t *testing.T) {
	for _, delay := range []time.Duration{300 * time.Microsecond, 7 * time.Millisecond} {
		_, connection := dialRelay(t, 0, delay)
		for number := range uint64(20) {
			begun := time.Now()
			send(t, connection, number, number+1)
			expect(t, connection, number, number+1)
			if took := time.Since(begun); took < 2*delay {
				t.Fatalf("there and back in %s, with %s each way", took, delay)
			}
		}
		go send(t, connection, 20, 20_000)
		expect(t, connection, 20, 20_000)
	}
}

func TestAShorterDelayLetsNothingOvertake(t *testing.T) {
	relay, connection := dialRelay(t, 0, 30*time.Millisecond)
	send(t, connection, 0, 10)
	time.Sleep(5 * time.Millisecond)
	if err := relay.delay(0, 0); err != nil {
		t.Fatal(err)
	}
	send(t, connection, 10, 20)
	expect(t, connection, 0, 20)
	if relay.delay(1, 0) == nil {
		t.Fatal("there is one link")
	}
}

func TestAMeteredLinkIsNoFasterThanItsRate(t *testing.T) {
	const rate, bytes = 10 << 20, 3 << 20
	_, connection := dialRelay(t, rate, time.Millisecond)
	begun := time.Now()
	go connection.Write(make([]byte, bytes))
	if _, err := io.CopyN(io.Discard, connection, bytes); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(begun), time.Second*bytes/rate; took < least {
		t.Fatalf("%d bytes in %s, sooner than %s", bytes, took, least)
	}
}

func TestTheEndOfAConnectionComesBehindItsBytes(t *testing.T) {
	_, connection := dialRelay(t, 0, 3*time.Millisecond)
	send(t, connection, 0, 1000)
	expect(t, connection, 0, 1000)
	connection.(*net.TCPConn).CloseWrite()
	if _, err := connection.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("%v, not the end", err)
	}
}
