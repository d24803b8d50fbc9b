package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// How many records a second a writer of fast appends sends.
const fastPerSecond = 20

// StartFast starts writers of fast appends, each to a partition of its own that others write to as well. They are processes
// of the binary under test: no other client knows these requests.
func (c *Clients) StartFast(binary, directory string, writers int) error {
	for i := range writers {
		if err := c.startFast(binary, fmt.Sprintf("fast-%d", i), int32(i), fmt.Sprintf("%s/fast-%d.log", directory, i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Clients) startFast(binary, name string, partition int32, errorsTo string) error {
	words := append([]string{"produce", topic, "--fast", "--each", "--quiet", "--key-separator", "\t", "--batch-bytes", "1", "--linger-ms", "0",
		"--retry-seconds", "120", "--partition", strconv.Itoa(int(partition)), "--bootstrap", strings.Join(c.bootstrap, ",")}, login.flags()...)
	process := exec.Command(binary, words...)
	lines, said, err := c.begin(process, errorsTo)
	if err != nil {
		return err
	}
	// Those that wait for an answer, in their order.
	sent := make(chan Op, 100_000)
	c.start(func() error {
		defer close(sent)
		defer lines.Close()
		for number := 0; c.pause(time.Second / fastPerSecond); number++ {
			op := Op{Client: name, Kind: Append, Partition: partition, Value: fmt.Sprintf("%s:%d", name, number), Number: number, Call: now()}
			sent <- op
			if _, err := fmt.Fprintf(lines, "%s\t%s\n", op.Value, valueOf(op.Value)); err != nil {
				return fmt.Errorf("%s: %w; see %s", name, err, errorsTo)
			}
		}
		return nil
	})
	c.start(func() error {
		answers := bufio.NewScanner(said)
		for answers.Scan() {
			var told struct{ Offset *int64 }
			if err := json.Unmarshal(answers.Bytes(), &told); err != nil {
				return fmt.Errorf("%s said %q: %w", name, answers.Text(), err)
			}
			op := <-sent
			op.Offset = Untold
			if told.Offset != nil {
				op.Offset = *told.Offset
			}
			c.note(op, nil)
		}
		err := process.Wait()
		// Nobody knows of these whether they happened.
		for op := range sent {
			op.Return, op.Outcome, op.Offset = now(), Unknown, -1
			c.history.Add(op)
		}
		if err != nil {
			return fmt.Errorf("%s: %w; see %s", name, err, errorsTo)
		}
		return answers.Err()
	})
	return nil
}
