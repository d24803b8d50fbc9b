// Package gosuite is what the suites of the Go clients share: the few checks that tests
// make, and how a member of `groups/` says what it has processed.
package gosuite

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testTimeout ends a test; run.py says by SLOWNESS how many times as long as a quiet machine this one takes.
var testTimeout = time.Duration(60 * slowness() * float64(time.Second))

func slowness() float64 {
	if slowness, err := strconv.ParseFloat(os.Getenv("SLOWNESS"), 64); err == nil {
		return slowness
	}
	return 1
}

var (
	// StrictBootstrap is a second broker: auto.create.topics.enable=false and message.max.bytes = 11 MiB.
	StrictBootstrap = os.Getenv("STRICT_BOOTSTRAP")
	IsKafka         = os.Getenv("BROKER_KIND") == "kafka"
	// User is who logs in by SCRAM-SHA-512, with Password and over Trusting; nobody where `run.py --secured` has made no user.
	User, Password = os.Getenv("SASL_USERNAME"), os.Getenv("SASL_PASSWORD")
)

// Trusted is the TLS of who trusts brokers that the authority in this file vouches for.
func Trusted(ca string) *tls.Config {
	roots := x509.NewCertPool()
	Check(roots.AppendCertsFromPEM(Must(os.ReadFile(ca))), "no certificate in %s", ca)
	return &tls.Config{RootCAs: roots}
}

// Trusting is the TLS by which User comes.
func Trusting() *tls.Config { return Trusted(os.Getenv("SSL_CA")) }

// number is counted from there on: two names of one moment would be one.
var number atomic.Int64

func init() { number.Store(time.Now().UnixMicro()) }

func addresses() []string { return strings.Split(os.Getenv("BOOTSTRAP"), ",") }

// Bootstrap is the broker under test, as Kafka's defaults make it; where several are one cluster, the first one, by which a
// client finds the others.
func Bootstrap() string { return addresses()[0] }

// Brokers is how many brokers are under test.
func Brokers() int { return len(addresses()) }

// Run runs a test. Its context ends with the test's time; `-timeout` ends clients that do not listen to it.
func Run(t *testing.T, test func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	// Checks panic, also in goroutines that are waited for.
	defer func() {
		if failure := recover(); failure != nil {
			t.Fatalf("%v\n%s", failure, debug.Stack())
		}
	}()
	test(ctx)
}

// Long runs a test that is not of the gate.
func Long(t *testing.T, test func(ctx context.Context)) {
	if testing.Short() {
		t.Skip("not of the gate")
	}
	Run(t, test)
}

func Check(condition bool, format string, arguments ...any) {
	if !condition {
		panic(fmt.Sprintf(format, arguments...))
	}
}

func Must[T any](value T, err error) T {
	Done(err)
	return value
}

func Done(err error) {
	if err != nil {
		panic(err)
	}
}

func Refused(err, expected error) {
	Check(errors.Is(err, expected), "expected %v, got %v", expected, err)
}

// AtOnce does the same to several things at the same time: tests of groups mostly wait.
func AtOnce[T any](things []T, do func(T)) {
	failures := make(chan any, len(things))
	var all sync.WaitGroup
	for _, thing := range things {
		all.Go(func() {
			defer func() {
				if failure := recover(); failure != nil {
					failures <- failure
				}
			}()
			do(thing)
		})
	}
	all.Wait()
	if len(failures) > 0 {
		panic(<-failures)
	}
}

// Until asks again and again whether something has come to be.
func Until(ctx context.Context, what string, is func() bool) {
	for !is() {
		select {
		case <-ctx.Done():
			panic("never came to be: " + what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Unique makes a name that neither this run nor an earlier one on the same broker used.
func Unique(name string) string {
	return fmt.Sprintf("%s-%d", name, number.Add(1))
}

// Processed is called by a member of `groups/` for each record, before it commits the record's offset.
func Processed(partition int32, offset int64, value []byte) {
	fmt.Printf("%d %d %s\n", partition, offset, value)
}

// UntilTerminated ends with SIGTERM, at which a member of `groups/` leaves.
func UntilTerminated() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	return ctx
}
