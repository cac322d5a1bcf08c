//! Random numbers, and `SEED`.

/// Random numbers from a seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("less than a usize")
    }

    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

pub fn seeds(n: u64) -> Vec<u64> {
    std::env::var("SEED").map_or_else(|_| (0..n).collect(), |seed| vec![seed.parse().expect("SEED is a number")])
}
