//! Random bytes of the kernel.

/// Returns random bytes for ids, keys and seeds.
pub(super) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    anyhow::ensure!(got == N, "the kernel gave too few random bytes");
    Ok(bytes)
}
